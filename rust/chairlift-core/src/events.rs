//! What happened to requests, in order; text, tokens and ends of all events lie in shared buffers.

use std::ops::Range;

use crate::{
    ids::{Nanos, RequestId},
    queue::WaitTimes,
};
use chairlift_text::answer::{Field, Fields};

/// Why a request ended before its answer was complete, or how its answer was completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The stop string with this text matched.
    StopString(String),
    /// An end or stop token was sampled.
    StopToken(i32),
    /// `max_tokens` or the context.
    Length,
    /// By the client.
    Cancelled,
    /// Its deadline passed while it ran.
    TimeLimit,
    /// An error: the answer is not complete.
    Failed(Failure),
}

/// The errors that end a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It had not started when its queue deadline passed.
    QueueTimeout,
    /// Its logits were not finite.
    NumericFault,
    /// What it allows and what it bans left no token to draw.
    NoTokenLeft,
    /// Its constraint cannot be computed within the limits.
    ConstraintTooComplex,
    /// A step failed because of it.
    StepFailed,
    /// The engine gives up on everything.
    EngineDown,
    /// The server drains and it had not started.
    Draining,
    /// Its adapter was unloaded.
    UnknownAdapter,
    /// Its blocks did not come from outside, and it may not compute them.
    PrefillUnavailable,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub request: RequestId,
    /// Which of the request's answers.
    pub index: u32,
    pub kind: EventKind,
}

/// Points into the buffers of [`Events`]: an event owns nothing, so that a step's thousands of them are plain writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// New output; text may lag behind tokens.
    Tokens {
        text: Range<usize>,
        /// Reasoning and function calls, in [`Events::fields`].
        fields: Range<usize>,
        tokens: Range<usize>,
        sample_slot: usize,
    },
    /// A piece of the prompt, whose first token has this position.
    Prompt {
        offset: usize,
        text: Range<usize>,
        tokens: Range<usize>,
        /// Where the step has the log probabilities of its tokens, but for the first of a prompt; empty without.
        scores: Range<usize>,
    },
    /// Nothing follows for the answer; which of [`Events::ends`] says why.
    Ended(usize),
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub reason: EndReason,
    pub stats: RequestStats,
    /// Nothing follows for the request either; an error ends all answers.
    pub last: bool,
}

/// Events since the last time they were taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    pub list: Vec<Event>,
    pub text: String,
    pub fields: Vec<Field>,
    /// The text of all fields.
    pub field_text: String,
    pub tokens: Vec<i32>,
    pub ends: Vec<End>,
}

impl Events {
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.text.clear();
        self.fields.clear();
        self.field_text.clear();
        self.tokens.clear();
        self.ends.clear();
    }

    pub(crate) fn end(
        &mut self,
        (request, index): (RequestId, u32),
        reason: EndReason,
        stats: RequestStats,
        last: bool,
    ) {
        let kind = EventKind::Ended(self.ends.len());
        self.ends.push(End {
            reason,
            stats,
            last,
        });
        self.list.push(Event {
            request,
            index,
            kind,
        });
    }

    /// Records a piece of a prompt whose text was appended to `self.text` from `text_start` on.
    pub(crate) fn prompt(
        &mut self,
        request: RequestId,
        offset: usize,
        text_start: usize,
        tokens: &[i32],
        scores: Range<usize>,
    ) {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        let kind = EventKind::Prompt {
            offset,
            text: text_start..self.text.len(),
            tokens: start..self.tokens.len(),
            scores,
        };
        let index = 0;
        self.list.push(Event {
            request,
            index,
            kind,
        });
    }

    /// Records new output whose text was appended to `self.text` from `text_start` on; what of it is reasoning or a
    /// call becomes a field. With `is_end` no text follows.
    pub(crate) fn tokens(
        &mut self,
        (request, index): (RequestId, u32),
        text_start: usize,
        parser: Option<&mut Fields>,
        is_end: bool,
        tokens: &[i32],
        sample_slot: usize,
    ) {
        let first_field = self.fields.len();
        if let Some(parser) = parser {
            let piece = self.text.split_off(text_start);
            let (fields, field_text) = (&mut self.fields, &mut self.field_text);
            parser.push(&piece, is_end, &mut self.text, fields, field_text);
        }
        let text = text_start..self.text.len();
        let fields = first_field..self.fields.len();
        if text.is_empty() && fields.is_empty() && tokens.is_empty() {
            return;
        }
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        let tokens = start..self.tokens.len();
        let kind = EventKind::Tokens {
            text,
            fields,
            tokens,
            sample_slot,
        };
        self.list.push(Event {
            request,
            index,
            kind,
        });
    }
}

/// What a request has cost, for its last event: the scheduler writes it and decides nothing by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RequestStats {
    /// Counted for the first sequence of a request.
    pub prompt_tokens: usize,
    /// Prompt tokens that the prefix cache had at the first admission.
    pub cached_tokens: usize,
    /// Those of `cached_tokens` whose blocks came from outside while the request was held.
    pub transferred_tokens: usize,
    pub output_tokens: usize,
    pub arrival: Nanos,
    pub first_scheduled: Option<Nanos>,
    pub first_token: Option<Nanos>,
    pub finished: Nanos,
    pub num_preemptions: usize,
    /// Tokens whose keys and values were computed, lost and computed again.
    pub num_recomputed_tokens: usize,
    /// Where the time from its arrival to its first step went, or to its end without one. Waits after a preemption
    /// are not in it.
    pub wait_times: WaitTimes,
}
