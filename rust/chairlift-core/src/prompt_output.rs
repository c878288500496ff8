//! A prompt that is sent back: its tokens, text and log probabilities, in pieces as its chunks are computed.
//!
//! ```text
//! chunks of a step   [ a b c ]              [ d e ]
//! log probabilities    b c d  behind a b c    e      behind d; behind e comes the output
//! pieces             a b c d                e
//! ```
//!
//! Each position is sent once. What a preemption or a failed step threw away is computed again, and scored again only where
//! no step that has succeeded has scored it.

use std::ops::Range;

use crate::{events::Events, ids::RequestId};
use chairlift_text::{Detokenizer, TextOptions, TokenTable};

/// Tokens of one event at most: with the most candidates it stays far below what clients receive in a message.
const MAX_PIECE: usize = 1024;

/// What is sent of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptOptions {
    /// Its tokens and its text.
    pub echo: bool,
    /// The log probability of each token but the first.
    pub scores: bool,
}

/// How far a prompt was sent.
#[derive(Clone, Debug)]
pub(crate) struct PromptOutput {
    has_scores: bool,
    detokenizer: Option<Detokenizer>,
    num_sent: usize,
    /// The next position that no step scores, the first one excepted.
    next: usize,
}

impl PromptOutput {
    pub(crate) fn new(options: PromptOptions, text: &TextOptions) -> Option<Box<Self>> {
        let is_asked = options.echo || options.scores;
        let has_text = options.echo && text.detokenize;
        is_asked.then(|| {
            Box::new(Self {
                has_scores: options.scores,
                detokenizer: has_text.then(|| Detokenizer::new(text.skip_special_tokens)),
                num_sent: 0,
                next: 1,
            })
        })
    }

    /// The positions that get a log probability in a step that computes the tokens `start..end`.
    pub(crate) fn score(&mut self, start: usize, end: usize, num_prompt: usize) -> Range<usize> {
        let first = self.next.max(start + 1);
        let last = (end + 1).min(num_prompt);
        if !self.has_scores || first >= last {
            return first..first;
        }
        self.next = last;
        first..last
    }

    /// The steps that were to score more have failed, or their results were thrown away.
    pub(crate) fn roll_back(&mut self) {
        self.next = self.num_sent.max(1);
    }

    /// Sends what a step that has succeeded adds: it computed all tokens up to `end`, and its log probabilities begin at
    /// `first_score`. Returns whether all of the prompt is sent.
    pub(crate) fn send(
        &mut self,
        request: RequestId,
        prompt: &[i32],
        end: usize,
        mut first_score: usize,
        table: &TokenTable,
        events: &mut Events,
    ) -> bool {
        let last = (end + 1).min(prompt.len());
        while self.num_sent < last {
            let offset = self.num_sent;
            let tokens = &prompt[offset..last.min(offset + MAX_PIECE)];
            self.num_sent += tokens.len();
            let text_start = events.text.len();
            if let Some(detokenizer) = &mut self.detokenizer {
                for &token in tokens {
                    detokenizer.push(table, token, &mut events.text);
                }
                if self.num_sent == prompt.len() {
                    detokenizer.finish(table, &mut events.text);
                }
            }
            let num_scores = if self.has_scores {
                tokens.len() - usize::from(offset == 0)
            } else {
                0
            };
            let scores = first_score..first_score + num_scores;
            first_score = scores.end;
            events.prompt(request, offset, text_start, tokens, scores);
        }
        self.num_sent == prompt.len()
    }
}
