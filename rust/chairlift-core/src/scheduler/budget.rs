//! What a step may still compute: tokens, and time if the step has a budget of time.
//!
//! ```text
//!  step_budget  |------------------------------------------|
//!               | fixed + decodes      | chunk | chunk | 0 |     cost model's forecast
//!               the decodes always go; prefill fills what is left, and the first chunk has at least MIN_CHUNK tokens,
//!               so that prompts come to their end even if the decodes alone take longer
//! ```

use crate::{
    cost_model::{CostModel, Work},
    ids::Nanos,
};

/// Tokens of the step's first chunk at least, however little time there is.
pub const MIN_CHUNK: usize = 16;

/// What is left for a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    tokens: usize,
    /// Nanoseconds; less than none if the decodes take longer.
    time: Option<f64>,
    has_chunk: bool,
}

impl Budget {
    /// For a step of so many tokens and so much time, of which `decodes` are taken.
    pub(super) fn new(
        tokens: usize,
        time: Option<Nanos>,
        costs: &CostModel,
        decodes: Work,
    ) -> Self {
        Self {
            tokens: tokens - decodes.tokens as usize,
            time: time.map(|time| time as f64 - costs.predict(decodes)),
            has_chunk: false,
        }
    }

    /// Nothing more can be computed.
    pub(super) fn is_spent(&self, costs: &CostModel) -> bool {
        let is_late = |time: f64| self.has_chunk && time < costs.added(Work::sampled(0, 1));
        self.tokens == 0 || self.time.is_some_and(is_late)
    }

    /// How many of a row's `pending` tokens from `start` on can be computed.
    pub(super) fn chunk(&self, costs: &CostModel, start: usize, pending: usize) -> usize {
        let max = pending.min(self.tokens);
        let Some(time) = self.time else { return max };
        let min = if self.has_chunk { 0 } else { MIN_CHUNK };
        // A chunk that ends its prompt is sampled after.
        let time = time - costs.added(Work::sample());
        costs.affordable(time, start, max).max(min).min(max)
    }

    /// How many drafts from `start` on can be computed beside all else.
    pub(super) fn drafts(&self, costs: &CostModel, start: usize, num_drafts: usize) -> usize {
        let max = num_drafts.min(self.tokens);
        let Some(time) = self.time else { return max };
        let fits = |&count: &usize| costs.added(Work::sampled(start, count)) <= time;
        (0..=max).rev().find(fits).unwrap_or(0)
    }

    /// Tokens beyond the decodes are computed.
    pub(super) fn spend(&mut self, costs: &CostModel, work: Work) {
        self.tokens -= work.tokens as usize;
        self.has_chunk |= work.tokens > 0;
        if let Some(time) = &mut self.time {
            *time -= costs.added(work);
        }
    }

    /// A decode that was reserved is not computed.
    pub(super) fn give_back(&mut self, costs: &CostModel, decode: Work) {
        self.tokens += decode.tokens as usize;
        if let Some(time) = &mut self.time {
            *time += costs.added(decode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decode_that_is_given_back_leaves_its_token_and_its_time_to_others() {
        let mut costs = CostModel::default();
        // A step of 2 ms, and 1 ms for each decode.
        for _ in 0..200 {
            for num_decodes in 0..4 {
                let mut work = Work::default();
                for _ in 0..num_decodes {
                    work = work.and(Work::sampled(100, 1));
                }
                costs.observe(work, 2_000_000 + 1_000_000 * num_decodes);
            }
        }
        let decode = Work::sampled(100, 1);
        let budget = |decodes| Budget::new(64, Some(5_000_000), &costs, decodes);
        let mut given_back = budget(decode.and(decode));
        given_back.give_back(&costs, decode);
        let (got, expected) = (given_back, budget(decode));
        assert_eq!(got.tokens, expected.tokens);
        let times = [got.time, expected.time].map(|time| time.expect("a budget of time"));
        assert!((times[0] - times[1]).abs() < 1.0, "{times:?}");
        assert!(times[0] > budget(decode.and(decode)).time.expect("the same") + 1e5);
    }
}
