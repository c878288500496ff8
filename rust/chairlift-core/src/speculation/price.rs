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

/// Chooses up to `most` drafts of a step whose decodes are the work `decodes`; writes how many each row has to `counts`.
pub(crate) fn choose(
    candidates: &mut [Candidate],
    most: usize,
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
    } in candidates.iter().take(most)
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

    #[test]
    fn drafts_at_most_double_the_time_of_a_step() {
        let count = chosen(&[1.0; 64], 1);
        assert!((8..=12).contains(&count), "{count}");
    }
}
