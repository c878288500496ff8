//! One request as a few numbers: easy to draw, to print and to shrink.

use std::fmt;

use chairlift_core::{Adapter, Config, Namespace, NewRequest, PromptOptions};
use chairlift_text::TextOptions;

use crate::{
    oracle::{Answer, root, with_adapter},
    random::{Random, mix},
    scenario::Traffic,
    text::Groups,
};

/// The name of a request in a run: its place among the arrivals.
pub(crate) type Label = u32;

/// What is wrong with a request on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    EmptyPrompt,
    UnknownToken,
    NoOutput,
    MinAboveMax,
    TooManyAnswers,
    TooLong,
}

/// Where an answer stops before its length: derived from the output that it would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At the token that would be this output.
    Token(usize),
    /// At a string that begins inside this output's text and is so many bytes long.
    String(usize, usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own, named where it is read"
)]
pub(crate) struct Arrival {
    pub(crate) label: Label,
    pub(crate) flaw: Option<Flaw>,
    pub(crate) num_prompt: usize,
    pub(crate) num_sequences: usize,
    /// Requests with one prefix share beginnings: of their prompts the first `shared` tokens.
    pub(crate) prefix: u8,
    pub(crate) shared: usize,
    pub(crate) max_tokens: usize,
    pub(crate) min_tokens: usize,
    pub(crate) stops: Vec<Stop>,
    pub(crate) include_stop: bool,
    pub(crate) detokenize: bool,
    pub(crate) tenant: u8,
    pub(crate) salt: u8,
    /// Slot and load generation of its adapter; slot 0 is none.
    pub(crate) adapter: (u8, u8),
    pub(crate) cache_read: bool,
    pub(crate) cache_write: bool,
    pub(crate) prompt_output: PromptOptions,
    pub(crate) credit: Option<u64>,
    pub(crate) priority: i32,
    /// From the arrival on.
    pub(crate) queue_patience: Option<u64>,
    pub(crate) first_token_patience: Option<u64>,
    /// It stands in the queue as if it had arrived so much later.
    pub(crate) turn_delay: u64,
    pub(crate) patience: Option<u64>,
}

impl Stop {
    pub(crate) fn draw(random: &mut Random, at: usize) -> Self {
        if random.chance(512) {
            Self::Token(at)
        } else {
            Self::String(at, random.between(1, 9))
        }
    }
}

/// The token ids and the texts that stops are in an answer; none where it is shorter.
pub(crate) fn find_stops(stops: &[Stop], answer: &Answer) -> (Vec<i32>, Vec<String>) {
    let (mut ids, mut texts) = (Vec::new(), Vec::new());
    for &stop in stops {
        match stop {
            Stop::Token(at) => ids.extend(answer.output().get(at)),
            Stop::String(at, len) => {
                let mut groups = Groups::default();
                let output = answer.output().iter().skip(at).take(5);
                output.for_each(|&token| groups.push(token));
                let text = groups.text(true);
                let end = text.len().min(1 + len);
                texts.extend(text.get(1..end).map(str::to_owned));
            }
        }
    }
    (ids, texts)
}

/// One of two adapters, each of which was loaded twice.
fn draw_adapter(random: &mut Random, traffic: &Traffic) -> (u8, u8) {
    if random.chance(traffic.adapters) {
        (random.between(1, 2) as u8, random.between(1, 2) as u8)
    } else {
        (0, 0)
    }
}

fn draw_num_sequences(random: &mut Random, traffic: &Traffic, tenant: u8) -> usize {
    match tenant {
        0 if traffic.is_greedy => traffic.max_sequences.div_ceil(random.between(1, 2)),
        _ if traffic.is_greedy => 1,
        _ if random.chance(traffic.answers) => random.between(1, traffic.max_sequences),
        _ => 1,
    }
}

fn draw_turn_delay(random: &mut Random, traffic: &Traffic) -> u64 {
    if random.chance(traffic.delays) {
        random.magnitude(1, 1 << 34) as u64
    } else {
        0
    }
}

pub(crate) fn draw_priority(random: &mut Random) -> i32 {
    random.between(0, 20) as i32 - 10
}

impl Arrival {
    pub(crate) fn draw(random: &mut Random, traffic: &Traffic, label: Label) -> Self {
        let tenant = random.below(traffic.num_tenants) as u8;
        let (max_prompt, max_output) = traffic.max_tokens(tenant);
        let max_tokens = random.between(1, max_output);
        let mut stops = Vec::new();
        while stops.len() < 3 && random.chance(traffic.stops) {
            let at = random.below(max_tokens.min(64));
            stops.push(Stop::draw(random, at));
        }
        let patience = |random: &mut Random| {
            let limited = random.chance(traffic.deadlines);
            limited.then(|| random.magnitude(1, 1 << 12) as u64)
        };
        Self {
            label,
            flaw: None,
            num_prompt: random.between(1, max_prompt),
            num_sequences: draw_num_sequences(random, traffic, tenant),
            prefix: random.below(traffic.num_prefixes) as u8,
            shared: random.between(0, traffic.max_shared),
            max_tokens,
            min_tokens: if random.chance(256) {
                random.between(0, max_tokens)
            } else {
                0
            },
            stops,
            include_stop: random.chance(256),
            detokenize: random.chance(512),
            tenant,
            salt: random.below(traffic.num_tenants) as u8,
            cache_read: !random.chance(traffic.uncached),
            cache_write: !random.chance(traffic.uncached),
            prompt_output: PromptOptions {
                echo: random.chance(traffic.prompts),
                scores: random.chance(traffic.prompts),
            },
            queue_patience: patience(random),
            first_token_patience: patience(random),
            patience: patience(random),
            credit: random
                .chance(traffic.credits)
                .then(|| random.between(0, 8) as u64),
            priority: if random.chance(traffic.priorities) {
                draw_priority(random)
            } else {
                0
            },
            adapter: draw_adapter(random, traffic),
            turn_delay: draw_turn_delay(random, traffic),
        }
    }

    /// The request and what each of its answers must be.
    pub(crate) fn build(&self, now: u64, config: &Config) -> (NewRequest, Vec<Answer>) {
        let prompt = self.prompt(config);
        let room = config.max_context_len().saturating_sub(prompt.len()).max(1);
        let limit = room.min(self.max_tokens);
        let adapter = self.adapter();
        let root = root(self.tenant, self.salt, adapter.generation);
        let root = with_adapter(root, adapter.slot);
        let mut new = NewRequest::new(prompt, self.max_tokens);
        new.num_sequences = self.num_sequences;
        let answer = |index| Answer::new(root, index, &new, limit, config);
        let mut answers: Vec<_> = (0..self.num_sequences).map(answer).collect();
        new.min_tokens = self.min_tokens;
        new.text = TextOptions {
            detokenize: self.detokenize,
            skip_special_tokens: true,
            stop: Vec::new(),
            stop_regex: None,
            include_stop: self.include_stop,
        };
        (new.stop_token_ids, new.text.stop) = find_stops(&self.stops, &answers[0]);
        new.namespace = Namespace {
            // Names that run together are the same: only their lengths tell them apart.
            tenant: "x".repeat(usize::from(self.tenant)),
            salt: "x".repeat(usize::from(self.salt)),
            adapter,
        };
        new.cache_read = self.cache_read;
        new.cache_write = self.cache_write;
        new.prompt_output = self.prompt_output;
        new.queue_deadline = self.queue_patience.map(|time| now.saturating_add(time));
        new.first_token_by = self.first_token_by(now);
        new.deadline = self.patience.map(|time| now.saturating_add(time));
        (new.credit, new.priority) = (self.credit, self.priority);
        new.turn_delay = self.turn_delay;
        for answer in &mut answers {
            answer.stop(&new);
        }
        self.spoil(&mut new, config);
        (new, answers)
    }

    pub(crate) fn adapter(&self) -> Adapter {
        Adapter {
            slot: u32::from(self.adapter.0),
            generation: u64::from(self.adapter.1),
        }
    }

    pub(crate) fn first_token_by(&self, now: u64) -> Option<u64> {
        self.first_token_patience
            .map(|time| now.saturating_add(time))
    }

    fn prompt(&self, config: &Config) -> Vec<i32> {
        let token = |position: usize| {
            let stream = if position < self.shared {
                u64::from(self.prefix)
            } else {
                1000 + u64::from(self.label)
            };
            (mix((stream << 32) + position as u64) % config.vocab_size as u64) as i32
        };
        (0..self.num_prompt).map(token).collect()
    }

    fn spoil(&self, new: &mut NewRequest, config: &Config) {
        match self.flaw {
            None => {}
            Some(Flaw::EmptyPrompt) => new.prompt.clear(),
            Some(Flaw::UnknownToken) => {
                let unknown = [-1, config.vocab_size as i32, i32::MIN, i32::MAX];
                new.prompt[self.num_prompt / 2] = unknown[self.label as usize % 4];
            }
            Some(Flaw::NoOutput) => new.max_tokens = 0,
            Some(Flaw::TooManyAnswers) => {
                new.num_sequences = [0, config.max_sequences() + 1][self.label as usize % 2];
            }
            Some(Flaw::MinAboveMax) => new.min_tokens = new.max_tokens + 1,
            Some(Flaw::TooLong) => {
                new.prompt = vec![0; config.max_context_len() + self.num_prompt];
            }
        }
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            label,
            num_prompt,
            prefix,
            shared,
            max_tokens,
            ..
        } = self;
        write!(f, "add #{label}: prompt {num_prompt}")?;
        if *shared > 0 {
            write!(f, " (first {} of prefix {prefix})", shared.min(num_prompt))?;
        }
        write!(f, ", max_tokens {max_tokens}")?;
        if self.num_sequences > 1 {
            write!(f, ", {} answers", self.num_sequences)?;
        }
        if self.min_tokens > 0 {
            write!(f, ", min_tokens {}", self.min_tokens)?;
        }
        for stop in &self.stops {
            write!(f, ", stop {stop:?}")?;
        }
        if (self.tenant, self.salt) != (0, 0) {
            write!(f, ", tenant {} salt {}", self.tenant, self.salt)?;
        }
        if self.adapter.0 != 0 {
            write!(f, ", adapter {} of load {}", self.adapter.0, self.adapter.1)?;
        }
        if let Some(credit) = self.credit {
            write!(f, ", credit {credit}")?;
        }
        if self.priority != 0 {
            write!(f, ", priority {}", self.priority)?;
        }
        if self.turn_delay != 0 {
            write!(f, ", its turn {} later", self.turn_delay)?;
        }
        for (on, what) in [
            (self.detokenize, "text"),
            (self.include_stop, "include_stop"),
            (!self.cache_read, "no cache read"),
            (!self.cache_write, "no cache write"),
            (self.prompt_output.echo, "echo"),
            (self.prompt_output.scores, "prompt scores"),
        ] {
            if on {
                write!(f, ", {what}")?;
            }
        }
        for (time, what) in [
            (self.queue_patience, "queue deadline"),
            (self.first_token_patience, "first token due"),
            (self.patience, "deadline"),
        ] {
            if let Some(time) = time {
                write!(f, ", {what} in {time}")?;
            }
        }
        self.flaw
            .map_or(Ok(()), |flaw| write!(f, ", flaw {flaw:?}"))
    }
}
