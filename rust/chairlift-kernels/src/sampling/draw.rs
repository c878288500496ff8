//! One draw: the kept head of the order of tokens, and the token at a uniform number.

use crate::{
    isa::{Isa, dispatch::Kernel},
    sampling::{
        candidates::top,
        filters::{Common, Filters},
        inputs::Parameters,
        order::{largest, last_kept},
        philox::{second_uniform, uniform},
        probabilities::{CHUNK, Weights, logit_of, total},
    },
};

#[derive(Debug, Default)]
pub(super) struct Sampled {
    pub(super) token: usize,
    pub(super) logprob: f32,
    pub(super) rank: usize,
    /// The likeliest tokens, and their log probabilities.
    pub(super) candidates: Vec<(usize, f32)>,
}

/// Draws for a row.
pub(super) struct Sampler<'a> {
    /// What the model gave.
    pub(super) raw: &'a [f32],
    /// What it became by masks and options; None is the same.
    pub(super) changed: Option<&'a mut [f32]>,
    pub(super) parameters: &'a Parameters<'a>,
    pub(super) row: usize,
    pub(super) filters: Filters,
    pub(super) num_candidates: usize,
}

impl Kernel for Sampler<'_> {
    type Output = Option<Sampled>;

    #[inline(always)]
    fn run<I: Isa>(mut self) -> Option<Sampled> {
        let raw = self.raw;
        let largest_logit = largest(raw)?;
        let token = match self.changed.take() {
            Some(changed) => {
                let largest = largest(changed)?;
                self.token_of_changed::<I>(changed, largest)
            }
            None => self.token::<I>(raw, largest_logit, self.common()),
        };
        if !self.parameters.are_scored(self.row) {
            return Some(Sampled {
                token,
                ..Sampled::default()
            });
        }
        Some(score::<I>(raw, largest_logit, token, self.num_candidates))
    }
}

/// What the model says of a token whose logit is one of `raw`, of which `largest_logit` is the largest.
#[inline(always)]
fn score<I: Isa>(raw: &[f32], largest_logit: f32, token: usize, num_candidates: usize) -> Sampled {
    let chosen = raw[token];
    let better = if chosen < largest_logit {
        num_above(raw, chosen)
    } else {
        0
    };
    let log_total = total::<I>(raw, largest_logit).ln();
    let logprob = |logit: f32| (f64::from(logit - largest_logit) - log_total) as f32;
    let candidates = top(raw, num_candidates);
    Sampled {
        token,
        logprob: logprob(chosen),
        rank: 1 + better,
        candidates: candidates
            .into_iter()
            .map(|key| (key as u32 as usize, logprob(logit_of(key))))
            .collect(),
    }
}

/// Scores a token that is given; None where the row has no distribution.
pub(super) struct Scorer<'a> {
    pub(super) logits: &'a [f32],
    pub(super) token: usize,
    pub(super) num_candidates: usize,
}

impl Kernel for Scorer<'_> {
    type Output = Option<Sampled>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Option<Sampled> {
        let largest_logit = largest(self.logits)?;
        Some(score::<I>(
            self.logits,
            largest_logit,
            self.token,
            self.num_candidates,
        ))
    }
}

impl Sampler<'_> {
    fn common(&self) -> Common {
        Common {
            temperature: self.parameters.temperature[self.row],
            top_k: self.parameters.top_k[self.row] as usize,
            top_p: self.parameters.top_p[self.row],
            min_p: self.parameters.min_p[self.row],
        }
    }

    #[inline(always)]
    fn token_of_changed<I: Isa>(&self, logits: &mut [f32], largest_logit: f32) -> usize {
        let common = self.common();
        if common.temperature == 0.0 || !self.filters.narrow() {
            return self.token::<I>(logits, largest_logit, common);
        }
        let (seed, index, position) = self.coordinates();
        let uniform = second_uniform(seed, index, position);
        self.filters.apply::<I>(logits, common, uniform);
        let rest = Common {
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..common
        };
        self.token::<I>(logits, largest(logits).unwrap_or(largest_logit), rest)
    }

    /// Seed, index and position of the draw.
    fn coordinates(&self) -> (u64, u32, u32) {
        let Parameters {
            seed,
            index,
            position,
            ..
        } = self.parameters;
        let row = self.row;
        (seed[row] as u64, index[row] as u32, position[row] as u32)
    }

    #[inline(always)]
    fn token<I: Isa>(&self, logits: &[f32], largest: f32, common: Common) -> usize {
        if common.temperature == 0.0 {
            return first(logits, largest);
        }
        let mut weights = Weights::new(largest, common.temperature);
        weights.last = last_kept::<I>(logits, &weights, common.top_k, common.top_p);
        weights.floor = common.min_p;
        let (seed, index, position) = self.coordinates();
        draw::<I>(logits, &weights, uniform(seed, index, position))
    }
}

/// The token at which the running sum of weights, in order of ids, exceeds a share of all.
#[inline(always)]
fn draw<I: Isa>(logits: &[f32], weights: &Weights, share: f64) -> usize {
    let sums = weights.sums::<I>(logits);
    let total: f64 = sums.iter().sum();
    let mut target = total * share;
    let mut drawn = 0;
    for (chunk, sum) in sums.iter().enumerate() {
        if *sum == 0.0 {
            continue;
        }
        let start = chunk * CHUNK;
        let end = logits.len().min(start + CHUNK);
        if target < *sum || !sums[chunk + 1..].iter().any(|&sum| sum > 0.0) {
            for id in start..end {
                let weight = f64::from(weights.weight::<I>(logits[id], id));
                if weight > 0.0 {
                    // Rounding may leave the target above the sum: then it is the last kept.
                    drawn = id;
                    if target < weight {
                        break;
                    }
                    target -= weight;
                }
            }
            break;
        }
        target -= sum;
    }
    drawn
}

/// Where a logit is first.
#[inline(always)]
fn first(logits: &[f32], wanted: f32) -> usize {
    // A search may end anywhere, which is no vector code; whether a chunk has it is.
    for (chunk, numbers) in logits.chunks(CHUNK).enumerate() {
        let mut is_here = false;
        for &logit in numbers {
            is_here |= logit == wanted;
        }
        if is_here {
            let place = numbers.iter().position(|&logit| logit == wanted);
            return chunk * CHUNK + place.unwrap_or_default();
        }
    }
    0
}

#[inline(always)]
fn num_above(logits: &[f32], bound: f32) -> usize {
    let mut count = 0;
    for &logit in logits {
        count += u32::from(logit > bound);
    }
    count as usize
}
