//! The gaps between the tokens of answers, in bounded memory.

use chairlift_core::Nanos;

/// Different gaps that are kept as they are; of more, each is rounded by at most 0.1 %.
const MAX_EXACT: usize = 1 << 22;

/// Binary digits of a gap that is rounded.
const DIGITS: u32 = 10;

/// How often each gap occurred.
#[derive(Clone, Debug, Default)]
pub struct Gaps {
    counts: Vec<(Nanos, u64)>,
}

impl Gaps {
    pub(crate) fn add(&mut self, gap: Nanos) {
        match self.counts.last_mut() {
            // The rows of a step nearly always have the same.
            Some((last, count)) if *last == gap => *count += 1,
            _ => {
                if self.counts.len() == MAX_EXACT {
                    self.round();
                }
                self.counts.push((gap, 1));
            }
        }
    }

    /// Gaps in nanoseconds, and how often each occurred; a gap may be listed more than once.
    pub fn counts(&self) -> &[(Nanos, u64)] {
        &self.counts
    }

    fn round(&mut self) {
        for (gap, _) in &mut self.counts {
            let shift = (Nanos::BITS - gap.leading_zeros()).saturating_sub(DIGITS);
            *gap = *gap >> shift << shift;
        }
        self.counts.sort_unstable();
        self.counts.dedup_by(|next, first| {
            let is_same = next.0 == first.0;
            first.1 += if is_same { next.1 } else { 0 };
            is_same
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_gap_is_lost_and_none_moves_far_when_there_are_many() {
        let mut gaps = Gaps::default();
        let count = MAX_EXACT as u64 + 1000;
        for gap in 0..count {
            gaps.add(1_000_000 + gap);
        }
        assert!(gaps.counts().len() < 20_000);
        let total: u64 = gaps.counts().iter().map(|&(_, count)| count).sum();
        assert_eq!(total, count);
        let sum: f64 = gaps
            .counts()
            .iter()
            .map(|&(gap, n)| gap as f64 * n as f64)
            .sum();
        let exact = (0..count).map(|gap| (1_000_000 + gap) as f64).sum::<f64>();
        assert!((sum / exact - 1.0).abs() < 1e-3);
    }
}
