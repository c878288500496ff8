//! Best-of: more sequences run than are sent, and those with the highest total log probability are.
//!
//! Nothing is sent before all sequences have ended: until then what they yield is kept. Complete answers come before those
//! that were cut by a cancel or a deadline, these before those without a token; among equals the first sequence.

use std::cmp::Reverse;

use crate::{
    events::{EndReason, Events, RequestStats},
    ids::RequestId,
    kept::Kept,
};

/// A sequence that has ended, and waits for the others.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) index: u32,
    pub(crate) kept: Kept,
    pub(crate) reason: EndReason,
    pub(crate) stats: RequestStats,
}

/// The sequences of a request that have ended.
#[derive(Clone, Debug)]
pub(crate) struct BestOf {
    num_sent: usize,
    pub(crate) ended: Vec<Ended>,
}

impl BestOf {
    pub(crate) fn new(num_sent: usize) -> Self {
        let ended = Vec::new();
        Self { num_sent, ended }
    }

    /// Sends the best, numbered from 0. The first has on its bill the prompt, and the tokens that are not sent.
    pub(crate) fn send(mut self, request: RequestId, events: &mut Events) {
        let is_complete =
            |reason: &EndReason| !matches!(reason, EndReason::Cancelled | EndReason::TimeLimit);
        self.ended.sort_by(|a, b| {
            let key = |it: &Ended| Reverse((is_complete(&it.reason), !it.kept.tokens.is_empty()));
            let by_kind = key(a).cmp(&key(b));
            let by_total = b.kept.total.total_cmp(&a.kept.total);
            by_kind.then(by_total).then(a.index.cmp(&b.index))
        });
        let stats = |ended: &[Ended], of: fn(&RequestStats) -> usize| {
            ended.iter().map(|it| of(&it.stats)).sum::<usize>()
        };
        let prompt_tokens = stats(&self.ended, |stats| stats.prompt_tokens);
        let cached_tokens = stats(&self.ended, |stats| stats.cached_tokens);
        let num_sent = self.num_sent.min(self.ended.len());
        let unsent_tokens = stats(&self.ended[num_sent..], |stats| stats.output_tokens);
        self.ended.truncate(num_sent);
        for (index, ended) in self.ended.into_iter().enumerate() {
            let Ended {
                kept,
                reason,
                mut stats,
                ..
            } = ended;
            let is_first = index == 0;
            let bill = |tokens: usize| if is_first { tokens } else { 0 };
            stats.prompt_tokens = bill(prompt_tokens);
            stats.cached_tokens = bill(cached_tokens);
            stats.unsent_tokens = bill(unsent_tokens);
            let key = (request, index as u32);
            events.kept(key, kept);
            events.end(key, reason, stats, index + 1 == num_sent);
        }
    }
}
