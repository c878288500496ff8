//! How many drafts pay: a draft is checked if that makes the step yield more tokens per second.
//!
//! ```text
//! without drafts a step yields N tokens in a time T
//! a draft yields p more, its probability, in a time c more
//! it pays if (N + p) / (T + c) > N / T, that is if p T > N c
//! ```
//!
//! With few rows a step waits for the weights, and checking costs little: T is long beside c. With many rows N grows, and only
//! drafts that are nearly certain pay. The rows of a step share its time, so that the likeliest drafts of all rows come first.
//!
//! Drafts of a draft model cost the time to make them, too: a pass of that model gives one more draft to each row.

use crate::cost_model::{CostModel, Work};

/// Drafts lengthen a step by no more than this part of its time without them: other rows wait for the same step.
const MAX_ADDED: f64 = 1.0;

/// A draft that may be checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    /// Which row of the step.
    pub(crate) row: usize,
    /// Where it would stand.
    pub(crate) position: usize,
    /// Probability that it and the drafts before it are right; it falls along a row.
    pub(crate) odds: f64,
}

/// Chooses up to `max` drafts of a step whose decodes are the work `decodes`; writes how many each row has to `counts`.
pub(crate) fn choose(
    candidates: &mut [Candidate],
    max: usize,
    decodes: Work,
    costs: &CostModel,
    counts: &mut [usize],
) {
    counts.fill(0);
    let alone = costs.predict(decodes);
    let (mut tokens, mut time) = (decodes.samples as f64, alone);
    // Equal odds keep the order of rows, and positions of a row theirs.
    candidates.sort_by(|a, b| b.odds.total_cmp(&a.odds));
    for &Candidate {
        row,
        position,
        odds,
    } in candidates.iter().take(max)
    {
        let cost = costs.added(Work::sampled(position, 1));
        if odds * time < tokens * cost || time + cost > alone * (1.0 + MAX_ADDED) {
            break;
        }
        counts[row] += 1;
        tokens += odds;
        time += cost;
    }
}

/// What a step yields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepYield {
    tokens: f64,
    time: f64,
}

impl StepYield {
    /// The yield of a step whose decodes are the work `decodes`, with the drafts of one row, as far as they pay.
    ///
    /// `odds` are their probabilities, and `cost` the nanoseconds of each.
    pub(crate) fn with_drafts(
        decodes: Work,
        odds: impl Iterator<Item = f64>,
        cost: f64,
        costs: &CostModel,
    ) -> Self {
        let (mut tokens, mut time) = (decodes.samples as f64, costs.predict(decodes));
        for odds in odds {
            if odds * time < tokens * cost {
                break;
            }
            (tokens, time) = (tokens + odds, time + cost);
        }
        Self { tokens, time }
    }

    /// The yield of a step with drafts of a draft model that are right at this rate.
    pub(crate) fn with_model_drafts(
        decodes: Work,
        rate: f64,
        cost: f64,
        costs: &CostModel,
    ) -> Self {
        let odds = (1..=MAX_MODEL_DRAFTS).map(|depth| rate.powi(depth as i32));
        Self::with_drafts(decodes, odds, cost, costs)
    }

    /// More tokens per second; while no time is known, more tokens.
    pub(crate) fn is_better_than(self, other: Self) -> bool {
        let (ours, theirs) = (self.tokens * other.time, other.tokens * self.time);
        ours > theirs || (ours == theirs && self.tokens > other.tokens)
    }
}

/// Drafts of a draft model for each row at most: the deeper ones are right too seldom.
const MAX_MODEL_DRAFTS: usize = 8;

/// The rows that a draft model may draft for.
pub(crate) struct ModelDrafts<'a> {
    /// How often a draft of each row is right if those before it are.
    pub(crate) rates: &'a [f64],
    /// Where their drafts stand, about.
    pub(crate) position: usize,
    /// Nanoseconds of a pass of the draft model, which makes one draft for each row.
    pub(crate) pass: f64,
    /// Drafts that a step may check, over all its rows.
    pub(crate) max_drafts: usize,
    /// Nanoseconds that a step should take at most.
    pub(crate) budget: f64,
}

impl ModelDrafts<'_> {
    /// How many drafts to make for each row, as long as the next pass makes the step yield more tokens per second.
    pub(crate) fn depth(&self, decodes: Work, costs: &CostModel) -> usize {
        let (alone, check) = (
            costs.predict(decodes),
            costs.added(Work::sampled(self.position, 1)),
        );
        let (mut tokens, mut time) = (decodes.samples as f64, alone);
        let max_time = self.budget.min(alone * (1.0 + MAX_ADDED));
        let max_depth = MAX_MODEL_DRAFTS.min(self.max_drafts / self.rates.len().max(1));
        for depth in 0..max_depth {
            let (mut gain, mut cost) = (0.0, self.pass);
            for rate in self.rates {
                let odds = rate.powi(depth as i32 + 1);
                // The step checks no others.
                if odds * time >= tokens * check {
                    (gain, cost) = (gain + odds, cost + check);
                }
            }
            if gain * time < tokens * cost || time + cost > max_time {
                return depth;
            }
            (tokens, time) = (tokens + gain, time + cost);
        }
        max_depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A step of 10 ms and a tenth of that for each token.
    fn costs() -> CostModel {
        let mut costs = CostModel::default();
        for i in 0..400 {
            let count = 1 + i % 40;
            let work = Work::sampled(i, count);
            costs.observe(work, 10_000_000 + 1_000_000 * count as u64);
        }
        costs
    }

    fn chosen(odds: &[f64], num_rows: usize) -> usize {
        let candidate = |(i, &odds): (usize, &f64)| Candidate {
            row: 0,
            position: 100 + i,
            odds,
        };
        let mut candidates: Vec<_> = odds.iter().enumerate().map(candidate).collect();
        let mut counts = vec![0; num_rows];
        let decodes =
            (0..num_rows).fold(Work::default(), |work, _| work.and(Work::sampled(100, 1)));
        choose(&mut candidates, 48, decodes, &costs(), &mut counts);
        counts[0]
    }

    #[test]
    fn one_row_takes_drafts_that_are_likely_and_none_that_are_not() {
        assert_eq!(chosen(&[0.9, 0.8, 0.7], 1), 3);
        assert_eq!(chosen(&[0.05, 0.04], 1), 0);
        assert_eq!(chosen(&[0.9, 0.05], 1), 1);
    }

    #[test]
    fn among_many_rows_only_nearly_certain_drafts_pay() {
        assert_eq!(chosen(&[0.6], 4), 1);
        assert_eq!(chosen(&[0.6], 40), 0);
        assert_eq!(chosen(&[0.97], 40), 1);
    }

    fn depth(rates: &[f64], pass: f64) -> usize {
        let drafts = ModelDrafts {
            rates,
            position: 100,
            pass,
            max_drafts: 48,
            budget: f64::INFINITY,
        };
        let decodes = rates
            .iter()
            .fold(Work::default(), |work, _| work.and(Work::sampled(100, 1)));
        drafts.depth(decodes, &costs())
    }

    #[test]
    fn a_draft_model_drafts_while_its_passes_pay() {
        assert_eq!(depth(&[0.9], 1e6), 5);
        assert_eq!(depth(&[0.6], 1e6), 2);
        assert_eq!(depth(&[0.1], 1e6), 0);
        assert_eq!(depth(&[0.1, 0.9], 1e6), 6);
        assert_eq!(depth(&[0.9; 16], 1e6), 1);
    }

    #[test]
    fn drafts_that_are_looked_up_go_before_likelier_ones_that_take_passes() {
        let costs = costs();
        let decodes = Work::sampled(100, 1);
        let looked_up = (1..=16).map(|depth| 0.8_f64.powi(depth));
        let looked_up = StepYield::with_drafts(decodes, looked_up, 1e6, &costs);
        let drawn = |pass| StepYield::with_model_drafts(decodes, 0.95, 1e6 + pass, &costs);
        assert!(looked_up.is_better_than(drawn(4e6)));
        assert!(drawn(1e5).is_better_than(looked_up));
        assert!(!drawn(1e8).is_better_than(looked_up));
    }

    #[test]
    fn a_draft_model_as_slow_as_the_model_drafts_nothing() {
        assert_eq!(depth(&[1.0], 11e6), 0);
        assert_eq!(depth(&[1.0; 8], 20e6), 0);
    }

    #[test]
    fn passes_of_a_draft_model_keep_to_the_budget_of_a_step() {
        let drafts = ModelDrafts {
            rates: &[1.0],
            position: 100,
            pass: 1e6,
            max_drafts: 48,
            budget: 15.5e6,
        };
        assert_eq!(drafts.depth(Work::sampled(100, 1), &costs()), 2);
    }

    #[test]
    fn drafts_never_more_than_double_the_time_of_a_step() {
        let count = chosen(&[1.0; 64], 1);
        assert!((8..=12).contains(&count), "{count}");
    }
}
