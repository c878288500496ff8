//! What each request must answer, computed without any cache, and the arithmetic that the fake model shares.
//!
//! ```text
//! before(g, p) = root(tenant, salt, adapter) + kv(g, q) of the q < p that p sees in KV group g: a sum over all it reads
//! kv(g, p)     = absorb(before(g, p), token(p), p)         what the model writes for position p
//! view(g, p)   = before(g, p) + kv(g, p)                   what position p attends to, itself included
//! state(p)     = recur(state(p - 1), token(p), p)          of a model with recurrent states; state(-1) is the root
//! token(p + 1) = sampled(view(., p), state(p))             where p is the last known token
//! ```
//!
//! A slot holds a hash of everything before it, so a wrong block, a stale hit, a lost, doubled or foreign token
//! changes every later token.

use chairlift_core::{Config, KvGroup, NewRequest, events::EndReason, scheduler::Stopping};

use crate::{random::mix, text::Groups};

/// The beginning of every chain of a namespace, as far as the slot of an adapter does not tell.
pub(crate) fn root(tenant: u8, salt: u8, adapter_generation: u64) -> u64 {
    mix(0xC0FF_EE00_0000 + (u64::from(tenant) << 8) + u64::from(salt)) ^ mix(adapter_generation)
}

/// The same with an adapter: its slot is what the plan tells the runner.
pub(crate) fn with_adapter(root: u64, slot: u32) -> u64 {
    root.wrapping_add(u64::from(slot) << 20)
}

/// The content of the KV slot at `position`.
pub(crate) fn absorb(seen: u64, token: i32, position: usize) -> u64 {
    mix(seen ^ ((token as u64) << 32) ^ position as u64)
}

/// The recurrent state behind the token at `position`.
pub(crate) fn recur(state: u64, token: i32, position: usize) -> u64 {
    absorb(!state, token, position)
}

/// The token after what the KV groups see, and the recurrent state, in one of the sequences.
pub(crate) fn sampled(views: impl Iterator<Item = u64>, index: usize, vocab_size: usize) -> i32 {
    let mixed = views.fold(index as u64, |all, view| mix(all ^ view));
    (mixed % vocab_size as u64) as i32
}

/// The first position that a token sees in a KV group.
pub(crate) fn first_visible(group: KvGroup, position: usize) -> usize {
    group
        .window
        .map_or(0, |window| (position + 1).saturating_sub(window as usize))
}

/// The answer of one request if nothing cuts it short.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) num_prompt: usize,
    /// Prompt and output; the output goes on to the length limit, past the end by a stop.
    pub(crate) tokens: Vec<i32>,
    root: u64,
    index: usize,
    groups: Vec<KvGroup>,
    vocab_size: usize,
    /// `sums[group][p]`: all that the group writes before position `p`; one more than tokens.
    sums: Vec<Vec<u64>>,
    /// Of a model with recurrent states: that before each position; one more than tokens.
    states: Option<Vec<u64>>,
    /// Most output tokens.
    pub(crate) limit: usize,
    detokenize: bool,
    /// Limits and stops, each until the next.
    phases: Vec<Phase>,
    /// Output tokens up to the end.
    pub(crate) num_output: usize,
    pub(crate) reason: EndReason,
}

impl Answer {
    /// The chain of the prompt with `limit` more tokens; it ends by its length until [`Answer::stop`] says more.
    pub(crate) fn new(
        root: u64,
        index: usize,
        new: &NewRequest,
        limit: usize,
        config: &Config,
    ) -> Self {
        let mut answer = Self {
            num_prompt: new.prompt.len(),
            tokens: new.prompt.clone(),
            root,
            index,
            groups: config.kv_groups.clone(),
            vocab_size: config.vocab_size,
            sums: vec![vec![0]; config.kv_groups.len()],
            states: config.state_snapshots.map(|_| vec![root]),
            limit,
            detokenize: false,
            phases: Vec::new(),
            num_output: limit,
            reason: EndReason::Length,
        };
        answer.extend(limit);
        answer
    }

    /// Goes on to `limit` output tokens, if it is shorter.
    pub(crate) fn extend(&mut self, limit: usize) {
        for position in self.sums[0].len() - 1..self.num_prompt + limit {
            if position >= self.num_prompt {
                let token = sampled(self.views(position), self.index, self.vocab_size);
                self.tokens.push(token);
            }
            if let Some(states) = &mut self.states {
                states.push(recur(states[position], self.tokens[position], position));
            }
            for group in 0..self.groups.len() {
                let first = first_visible(self.groups[group], position);
                let before = self.sum(group, first, position);
                let kv = absorb(before, self.tokens[position], position);
                let sum = self.sums[group][position];
                self.sums[group].push(sum.wrapping_add(kv));
            }
        }
    }

    fn sum(&self, group: usize, first: usize, end: usize) -> u64 {
        let sums = &self.sums[group];
        self.root.wrapping_add(sums[end].wrapping_sub(sums[first]))
    }

    /// What the last token before `end` attends to in each KV group, itself included, and the state behind it.
    pub(crate) fn views(&self, end: usize) -> impl Iterator<Item = u64> + '_ {
        let groups = self.groups.iter().enumerate();
        let views = groups.map(move |(i, &group)| self.sum(i, first_visible(group, end - 1), end));
        views.chain(self.states.iter().map(move |states| states[end]))
    }

    /// Bytes of the text of the first `num_output` output tokens; none where no text is wanted.
    pub(crate) fn text_len(&self, num_output: usize) -> usize {
        let mut groups = Groups::default();
        if self.detokenize {
            for &token in self.output().iter().take(num_output) {
                groups.push(token);
            }
        }
        groups.text(true).len()
    }

    pub(crate) fn output(&self) -> &[i32] {
        &self.tokens[self.num_prompt..]
    }

    /// Finds the end that the request's stop tokens and strings make.
    pub(crate) fn stop(&mut self, new: &NewRequest) {
        self.detokenize = new.text.detokenize;
        self.phases.push(Phase {
            first: 0,
            given_out: 0,
            min_tokens: new.min_tokens,
            stop_token_ids: new.stop_token_ids.clone(),
            stop: new.text.stop.clone(),
            include_stop: new.text.include_stop,
        });
        self.find_end();
    }

    /// Finds the end anew: other limits and stops hold after `num_output` tokens, of which the client has so many bytes.
    pub(crate) fn change(&mut self, new: &Stopping, limit: usize, num_output: usize, text: usize) {
        let given_out = if self.detokenize {
            text
        } else {
            // Nothing is held back from a client that wants no text.
            let mut groups = Groups::default();
            let so_far = &self.output()[..num_output];
            for &token in so_far {
                groups.push(token);
            }
            groups.text(false).len()
        };
        self.phases.push(Phase {
            first: num_output,
            given_out,
            min_tokens: new.min_tokens,
            stop_token_ids: new.stop_token_ids.clone(),
            stop: new.stop.clone(),
            include_stop: new.include_stop,
        });
        self.limit = limit;
        self.find_end();
    }

    fn find_end(&mut self) {
        let reading = self.read(self.limit);
        (self.num_output, self.reason) = (reading.num_tokens, reading.reason);
    }

    fn phase(&self, token: usize) -> &Phase {
        let begun = self.phases.iter().rfind(|phase| phase.first <= token);
        begun.expect("the first begins at 0")
    }

    /// The text of the first `count` output tokens, or of those up to the end.
    pub(crate) fn text(&self, count: usize) -> String {
        if self.detokenize {
            self.read(count).text
        } else {
            String::new()
        }
    }

    /// How the answer ends if it may have so many output tokens and no more.
    pub(crate) fn reason_at(&self, num_output: usize) -> EndReason {
        self.read(num_output).reason
    }

    /// Reads up to `max_tokens` output tokens as if the answer were no longer.
    fn read(&self, max_tokens: usize) -> Reading {
        let mut groups = Groups::default();
        let (mut num_tokens, mut reason, mut matches) = (max_tokens, EndReason::Length, false);
        for (i, &token) in self.output()[..max_tokens].iter().enumerate() {
            let phase = self.phase(i);
            let may_stop = i + 1 >= phase.min_tokens;
            if may_stop && phase.stop_token_ids.contains(&token) {
                (num_tokens, reason) = (i + 1, EndReason::StopToken(token));
                if phase.include_stop {
                    groups.push(token);
                    matches = false;
                }
                break;
            }
            matches = may_stop && !phase.stop.is_empty();
            let past = if matches { groups.text(false).len() } else { 0 };
            groups.push(token);
            if matches && let Some(reading) = phase.cut(groups.text(false), past, i + 1) {
                return reading;
            }
        }
        let text = groups.text(true);
        // The end decides what was open, for stops that were there when the last token came.
        let phase = self.phase(num_tokens);
        if matches
            && phase.first < num_tokens
            && let Some(reading) = phase.cut(text.clone(), groups.text(false).len(), num_tokens)
        {
            return reading;
        }
        Reading {
            num_tokens,
            reason,
            text,
        }
    }
}

/// Limits and stops, from one output token on.
#[derive(Clone, Debug)]
struct Phase {
    first: usize,
    /// Bytes of text that were given out before: no stop string begins in them.
    given_out: usize,
    min_tokens: usize,
    stop_token_ids: Vec<i32>,
    stop: Vec<String>,
    include_stop: bool,
}

impl Phase {
    /// What is left of a text if a stop string ends in it after `past`.
    fn cut(&self, mut text: String, past: usize, num_tokens: usize) -> Option<Reading> {
        let (stop, at) = first_match(&text, past, self.given_out, &self.stop)?;
        let reason = EndReason::StopString(stop.to_owned());
        let end = if self.include_stop {
            at + stop.len()
        } else {
            at
        };
        text.truncate(end);
        Some(Reading {
            num_tokens,
            reason,
            text,
        })
    }
}

/// Output up to its end.
struct Reading {
    num_tokens: usize,
    reason: EndReason,
    text: String,
}

/// The stop string that ends first after `before`, the longest of those that end together; and where it begins, which is
/// not before `min_bytes`.
fn first_match<'a>(
    text: &str,
    before: usize,
    min_bytes: usize,
    stops: &'a [String],
) -> Option<(&'a str, usize)> {
    (before.max(min_bytes) + 1..=text.len()).find_map(|end| {
        let matching = stops.iter().filter(|stop| {
            !stop.is_empty() && text.as_bytes()[min_bytes..end].ends_with(stop.as_bytes())
        });
        let longest = matching.max_by_key(|stop| stop.len())?;
        Some((longest.as_str(), end - longest.len()))
    })
}
