//! Where one request's events stand: the last event number, and of each answer the tokens that were not sent yet.

use std::ops::Range;

use chairlift_core::{
    Nanos,
    events::{Event, EventKind, Events},
};
use chairlift_text::answer::{Content, Field};

use crate::{
    log::LogId,
    stream::StreamId,
    wire::{CallPart, Tokens, prompt_event, put_varint},
};

/// What a client asked to be sent, and how it is counted.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub text: bool,
    pub token_ids: bool,
    pub logprobs: bool,
    /// The likeliest tokens that are sent with each log probability, as many as the step reports or fewer.
    pub num_candidates: usize,
    pub prompt: PromptDelivery,
    /// Tokens per event after the first; 0 is one event at the end.
    pub interval: u32,
    /// Tokens are counted by this small number.
    pub group: usize,
    /// Answers of the request.
    pub num_answers: usize,
    /// Where what is sent is kept, to be sent again.
    pub log: Option<LogId>,
}

/// Scores of the sample slots of a step, or nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scores<'a> {
    pub logprobs: &'a [f32],
    pub ranks: &'a [i32],
    /// Candidates of each slot.
    pub stride: usize,
    /// `[S, stride]`
    pub candidate_ids: &'a [i32],
    /// `[S, stride]`
    pub candidate_logprobs: &'a [f32],
}

/// What is sent of the prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptDelivery {
    /// Its text and tokens, as far as those of the output are sent.
    pub echo: bool,
    pub logprobs: bool,
    pub num_candidates: usize,
}

/// Output of one answer in one step, or a piece of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output<'a> {
    pub(crate) text: &'a str,
    /// Of which `field_text` has the text.
    pub(crate) fields: &'a [Field],
    pub(crate) field_text: &'a str,
    pub(crate) token_ids: &'a [i32],
    pub(crate) logprobs: &'a [f32],
    pub(crate) ranks: &'a [i32],
    /// Of each token; a request that asks for fewer has the first ones.
    pub(crate) stride: usize,
    pub(crate) candidate_ids: &'a [i32],
    pub(crate) candidate_logprobs: &'a [f32],
}

impl<'a> Output<'a> {
    /// What an event says, if it is about tokens.
    pub(crate) fn of(event: &Event, events: &'a Events, scores: Scores<'a>) -> Option<Self> {
        let EventKind::Tokens {
            text,
            fields,
            tokens,
            sample_slot,
        } = &event.kind
        else {
            return None;
        };
        let samples = *sample_slot..sample_slot + tokens.len();
        let (text, tokens) = (&events.text[text.clone()], &events.tokens[tokens.clone()]);
        Some(Self {
            fields: &events.fields[fields.clone()],
            field_text: &events.field_text,
            ..scores.output(text, tokens, samples)
        })
    }
}

impl<'a> Scores<'a> {
    /// Text and tokens with the scores in a range.
    pub(crate) fn output(
        self,
        text: &'a str,
        token_ids: &'a [i32],
        range: Range<usize>,
    ) -> Output<'a> {
        let stride = self.stride;
        let lines = range.start * stride..range.end * stride;
        Output {
            text,
            fields: &[],
            field_text: "",
            token_ids,
            logprobs: self.logprobs.get(range.clone()).unwrap_or_default(),
            ranks: self.ranks.get(range).unwrap_or_default(),
            stride,
            candidate_ids: self.candidate_ids.get(lines.clone()).unwrap_or_default(),
            candidate_logprobs: self.candidate_logprobs.get(lines).unwrap_or_default(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Track {
    pub(crate) stream: StreamId,
    pub(crate) request_id: Vec<u8>,
    number: u32,
    /// The highest that was given out.
    sent: u32,
    pub(crate) arrived_at: Nanos,
    pub(crate) has_started: bool,
    pub(crate) options: Options,
    pub(crate) answers: Vec<Answer>,
}

/// One answer of a request.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Not sent yet; they may be kept for an interval.
    pub(crate) tokens: Tokens,
    /// The number of the last of them.
    number: u32,
    /// Listed in the stream: what is kept makes an event.
    pub(crate) is_due: bool,
    pub(crate) last_token_at: Option<Nanos>,
    has_sent_tokens: bool,
}

impl Track {
    pub(crate) fn new(
        stream: StreamId,
        request_id: &str,
        options: Options,
        arrived_at: Nanos,
    ) -> Self {
        Self {
            stream,
            request_id: request_id.as_bytes().to_vec(),
            number: 0,
            sent: 0,
            arrived_at,
            has_started: false,
            options,
            answers: (0..options.num_answers)
                .map(|_| Answer::default())
                .collect(),
        }
    }

    /// The number of an event of its own, which is the next to be sent.
    pub(crate) fn next_number(&mut self) -> u32 {
        self.number = self.number.wrapping_add(1);
        self.sent = self.number;
        self.number
    }

    /// The number of an event of what an answer has kept: it rises in the order in which they are sent.
    pub(crate) fn tokens_number(&mut self, index: usize) -> u32 {
        let last = self.answers[index].number;
        self.sent = last.max(self.sent.saturating_add(1));
        self.number = self.number.max(self.sent);
        self.sent
    }

    /// Memory of the tokens that its stream lists as due.
    pub(crate) fn num_due_bytes(&self) -> usize {
        let due = self.answers.iter().filter(|answer| answer.is_due);
        due.map(|answer| answer.tokens.len()).sum()
    }

    /// Keeps what a step produced; tells whether it makes an event now.
    pub(crate) fn keep(&mut self, index: usize, output: Output<'_>) -> bool {
        self.number = self.number.wrapping_add(1);
        let answer = &mut self.answers[index];
        answer.number = self.number;
        let tokens = &mut answer.tokens;
        tokens.num_tokens += output.token_ids.len() as u32;
        if self.options.text {
            tokens.text.extend_from_slice(output.text.as_bytes());
            for field in output.fields {
                tokens.keep_field(field.content, &output.field_text[field.text.clone()]);
            }
        }
        if self.options.token_ids {
            tokens.keep_ids(output.token_ids);
        }
        if self.options.logprobs {
            tokens.keep_logprobs(self.options.num_candidates, output);
        }
        let interval = self.options.interval;
        interval != 0 && (!answer.has_sent_tokens || tokens.num_tokens >= interval)
    }
}

impl Track {
    /// The event of a piece of the prompt, without its number.
    pub(crate) fn prompt_event(&self, offset: usize, piece: Output<'_>) -> Vec<u8> {
        let mut tokens = Tokens::default();
        let PromptDelivery {
            echo,
            logprobs,
            num_candidates,
        } = self.options.prompt;
        if echo && self.options.text {
            tokens.text.extend_from_slice(piece.text.as_bytes());
        }
        if self.options.token_ids {
            tokens.keep_ids(piece.token_ids);
        }
        if logprobs {
            tokens.keep_logprobs(num_candidates, piece);
        }
        prompt_event(&self.request_id, offset, &tokens)
    }
}

impl Tokens {
    fn keep_field(&mut self, content: Content, text: &str) {
        match content {
            Content::Reasoning => self.reasoning.extend_from_slice(text.as_bytes()),
            Content::Call { position, id } => self.calls.push(CallPart {
                position,
                id: Some(id),
                name: text.to_owned(),
                arguments: Vec::new(),
            }),
            Content::Arguments { position } => {
                let last = self.calls.last_mut();
                if let Some(part) = last.filter(|part| part.position == position) {
                    part.arguments.extend_from_slice(text.as_bytes());
                } else {
                    self.calls.push(CallPart {
                        position,
                        id: None,
                        name: String::new(),
                        arguments: text.as_bytes().to_vec(),
                    });
                }
            }
        }
    }

    fn keep_ids(&mut self, ids: &[i32]) {
        for &id in ids {
            put_varint(&mut self.token_ids, id as u64);
        }
    }

    fn keep_logprobs(&mut self, num_candidates: usize, output: Output<'_>) {
        for (logprob, &rank) in output.logprobs.iter().zip(output.ranks) {
            self.logprobs.extend_from_slice(&logprob.to_le_bytes());
            put_varint(&mut self.ranks, rank as u64);
        }
        self.keep_candidates(num_candidates.min(output.stride), output);
    }

    /// Keeps the first `count` candidates of each token.
    fn keep_candidates(&mut self, count: usize, output: Output<'_>) {
        if count == 0 {
            return;
        }
        self.num_candidates = count as u32;
        let ids = output.candidate_ids.chunks_exact(output.stride);
        for (ids, logprobs) in ids.zip(output.candidate_logprobs.chunks_exact(output.stride)) {
            for (&id, logprob) in ids[..count].iter().zip(logprobs) {
                put_varint(&mut self.candidate_ids, id as u64);
                let logprob = logprob.to_le_bytes();
                self.candidate_logprobs.extend_from_slice(&logprob);
            }
        }
    }
}

impl Answer {
    /// What was kept is in a message.
    pub(crate) fn sent(&mut self) {
        self.tokens.clear();
        self.has_sent_tokens = true;
        self.is_due = false;
    }
}
