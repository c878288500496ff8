//! How long a step takes, learnt while serving.
//!
//! ```text
//! time = fixed + per_token * tokens + per_pair * pairs + per_sample * samples
//!        weights read, calls | matrix products  | attention: pairs of a token and a token that it sees
//!                                                                  | logits and draws
//! ```
//!
//! Recursive least squares with forgetting, and with a pull towards the last estimate where the steps say nothing: a
//! server that only decodes keeps what it knows of prefill (proximal RLS; against the wind-up of plain forgetting, see
//! Åström & Wittenmark, *Adaptive Control*, 11.5). The same steps give the same model: there is no clock and no library
//! function in it.

use crate::ids::Nanos;

/// What a step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub tokens: u64,
    /// For each token, the tokens that it sees, itself included.
    pub pairs: u64,
    /// Tokens after which one is drawn.
    pub samples: u64,
}

impl Work {
    /// `count` tokens of one row, the first at position `start`, of which none is sampled after.
    pub fn of(start: usize, count: usize) -> Self {
        let (start, count) = (start as u64, count as u64);
        Self {
            tokens: count,
            pairs: count * start + count * (count + 1) / 2,
            samples: 0,
        }
    }

    /// The work of `count` tokens from `start` on with a sample after each: decodes and drafts.
    pub fn sampled(start: usize, count: usize) -> Self {
        Self {
            samples: count as u64,
            ..Self::of(start, count)
        }
    }

    /// A sample beside the tokens.
    pub fn sample() -> Self {
        Self {
            samples: 1,
            ..Self::default()
        }
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            pairs: self.pairs + other.pairs,
            samples: self.samples + other.samples,
        }
    }
}

const SIZE: usize = 4;

/// Units in which the features are about as large as each other.
const TOKENS: f64 = 64.0;
const PAIRS: f64 = 65_536.0;
const SAMPLES: f64 = 64.0;

/// Weight of the past at each step: half of it is some 70 steps old.
const MEMORY: f64 = 0.99;
/// How hard the last estimate holds where nothing new is said.
const INERTIA: f64 = 0.01;
/// A step longer than this many times its prediction was held up by something else.
const OUTLIER: f64 = 4.0;
/// So many steps are believed whatever they say.
const NUM_TRUSTED: u64 = 8;

/// Predicts how long steps take.
#[derive(Clone, Debug, Default)]
pub struct CostModel {
    /// Nanoseconds of each feature.
    weights: [f64; SIZE],
    /// Sums of products of features, and of features with times, faded.
    products: [[f64; SIZE]; SIZE],
    times: [f64; SIZE],
    num_steps: u64,
}

fn features(work: Work) -> [f64; SIZE] {
    [
        1.0,
        work.tokens as f64 / TOKENS,
        work.pairs as f64 / PAIRS,
        work.samples as f64 / SAMPLES,
    ]
}

fn dot(a: &[f64; SIZE], b: &[f64; SIZE]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]
}

impl CostModel {
    /// Nanoseconds that a step takes; 0 before the first was seen.
    pub fn predict(&self, work: Work) -> f64 {
        dot(&self.weights, &features(work))
    }

    /// Nanoseconds that more work adds to a step.
    pub fn added(&self, work: Work) -> f64 {
        self.predict(work) - self.weights[0]
    }

    /// Most tokens from position `start` on, up to `max`, that add no more than `time` nanoseconds.
    pub fn affordable(&self, time: f64, start: usize, max: usize) -> usize {
        let fits = |count: usize| self.added(Work::of(start, count)) <= time;
        if fits(max) {
            return max;
        }
        let (mut fitting, mut too_many) = (0, max);
        while fitting + 1 < too_many {
            let count = usize::midpoint(fitting, too_many);
            if fits(count) {
                fitting = count;
            } else {
                too_many = count;
            }
        }
        fitting
    }

    /// Learns from a step.
    pub fn observe(&mut self, work: Work, took: Nanos) {
        if took == 0 {
            return;
        }
        let x = features(work);
        let mut time = took as f64;
        if self.num_steps >= NUM_TRUSTED {
            time = time.min(OUTLIER * dot(&self.weights, &x));
        }
        self.num_steps += 1;
        for row in 0..SIZE {
            for column in 0..SIZE {
                self.products[row][column] =
                    MEMORY * self.products[row][column] + x[row] * x[column];
            }
            self.times[row] = MEMORY * self.times[row] + x[row] * time;
        }
        self.weights = self.fitted();
    }

    /// Solves for the weights that explain the steps and stay near the last ones; none is negative.
    fn fitted(&self) -> [f64; SIZE] {
        let mut matrix = self.products;
        let mut rest = self.times;
        for row in 0..SIZE {
            rest[row] -= dot(&self.products[row], &self.weights);
            matrix[row][row] += INERTIA;
        }
        // Gauss without pivots: the matrix is symmetric and positive definite.
        for pivot in 0..SIZE {
            for row in pivot + 1..SIZE {
                let factor = matrix[row][pivot] / matrix[pivot][pivot];
                for column in pivot..SIZE {
                    matrix[row][column] -= factor * matrix[pivot][column];
                }
                rest[row] -= factor * rest[pivot];
            }
        }
        let mut change = [0.0; SIZE];
        for row in (0..SIZE).rev() {
            change[row] = (rest[row] - dot(&matrix[row], &change)) / matrix[row][row];
        }
        let mut weights = self.weights;
        for (weight, change) in weights.iter_mut().zip(change) {
            *weight = (*weight + change).max(0.0);
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 40 ms, 8 ms a token, 1 us a thousand pairs.
    fn truth(work: Work) -> Nanos {
        40_000_000 + 8_000_000 * work.tokens + work.pairs * 1000
    }

    fn taught(works: impl IntoIterator<Item = Work>) -> CostModel {
        let mut model = CostModel::default();
        for work in works {
            model.observe(work, truth(work));
        }
        model
    }

    fn mixed() -> impl Iterator<Item = Work> {
        (0..200).map(|i| Work::of(i * 37 % 4000, if i % 3 == 0 { 128 } else { 1 + i % 16 }))
    }

    fn error(model: &CostModel, work: Work) -> f64 {
        model.predict(work) / truth(work) as f64 - 1.0
    }

    #[test]
    fn it_learns_a_linear_machine() {
        let model = taught(mixed());
        for work in [Work::of(0, 1), Work::of(3000, 100), Work::of(100, 32)] {
            assert!(error(&model, work).abs() < 0.02, "{}", error(&model, work));
        }
    }

    #[test]
    fn long_decoding_does_not_make_it_forget_prefill() {
        let mut model = taught(mixed());
        for i in 0..100_000 {
            let work = Work::of(500 + i % 100, 1);
            model.observe(work, truth(work));
        }
        assert!(error(&model, Work::of(0, 128)).abs() < 0.1);
    }

    #[test]
    fn it_follows_a_machine_that_becomes_slower() {
        let mut model = taught(mixed());
        for work in mixed().chain(mixed()) {
            model.observe(work, 2 * truth(work));
        }
        assert!((error(&model, Work::of(0, 64)) - 1.0).abs() < 0.1);
    }

    #[test]
    fn a_step_that_was_held_up_hardly_moves_it() {
        let mut model = taught(mixed());
        model.observe(Work::of(0, 8), 3_600_000_000_000);
        assert!(error(&model, Work::of(0, 8)).abs() < 0.3);
    }

    #[test]
    fn the_largest_count_that_fits_is_affordable() {
        let model = taught(mixed());
        for start in [0, 2000] {
            let count = model.affordable(400e6, start, 256);
            assert!((1..256).contains(&count));
            assert!(model.added(Work::of(start, count)) <= 400e6);
            assert!(model.added(Work::of(start, count + 1)) > 400e6);
        }
        assert_eq!(model.affordable(-1.0, 0, 256), 0);
        assert_eq!(CostModel::default().affordable(0.0, 0, 256), 256);
    }
}
