//! One draw: the kept head of the order of tokens, and the token at a uniform number.

use super::{
    Parameters,
    candidates::top,
    filters::{Common, Filters},
};
use crate::{
    isa::{Isa, dispatch::Kernel},
    ops::{
        philox::{second_uniform, uniform},
        probabilities::{
            CHUNK, LANES, LAST_OF_ALL, Last, Weights, in_lanes, key, logit_of, total, weigh,
        },
    },
};

#[derive(Debug, Default)]
pub(super) struct Drawn {
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
    type Output = Option<Drawn>;

    #[inline(always)]
    fn run<I: Isa>(mut self) -> Option<Drawn> {
        let raw = self.raw;
        let most = largest(raw)?;
        let token = match self.changed.take() {
            Some(changed) => {
                let largest = largest(changed)?;
                self.token_of_changed::<I>(changed, largest)
            }
            None => self.token::<I>(raw, most, self.common()),
        };
        Some(score::<I>(raw, most, token, self.num_candidates))
    }
}

/// What the model says of a token whose logit is one of `raw`, of which `most` is the largest.
#[inline(always)]
fn score<I: Isa>(raw: &[f32], most: f32, token: usize, num_candidates: usize) -> Drawn {
    let chosen = raw[token];
    let better = if chosen < most {
        num_above(raw, chosen)
    } else {
        0
    };
    let log_total = total::<I>(raw, most).ln();
    let logprob = |logit: f32| (f64::from(logit - most) - log_total) as f32;
    let candidates = top(raw, num_candidates);
    Drawn {
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
    type Output = Option<Drawn>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Option<Drawn> {
        let most = largest(self.logits)?;
        Some(score::<I>(
            self.logits,
            most,
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
    fn token_of_changed<I: Isa>(&self, logits: &mut [f32], most: f32) -> usize {
        let common = self.common();
        if common.temperature == 0.0 || !self.filters.narrow() {
            return self.token::<I>(logits, most, common);
        }
        let (seed, index, position) = self.coordinates();
        let coin = second_uniform(seed, index, position);
        self.filters.apply::<I>(logits, common, coin);
        let rest = Common {
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            ..common
        };
        self.token::<I>(logits, largest(logits).unwrap_or(most), rest)
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

/// The largest logit, or None if a logit is NaN or +inf or all are -inf.
#[inline(always)]
pub(super) fn largest(logits: &[f32]) -> Option<f32> {
    // A maximum per lane: one alone would be a chain of comparisons, each of which waits for the last.
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut is_sound = true;
    for logits in in_lanes(logits) {
        for lane in 0..LANES {
            is_sound &= logits[lane] < f32::INFINITY;
            lanes[lane] = if logits[lane] > lanes[lane] {
                logits[lane]
            } else {
                lanes[lane]
            };
        }
    }
    let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (is_sound && largest > f32::NEG_INFINITY).then_some(largest)
}

/// The last token that `top_k` and `top_p` keep.
#[inline(always)]
pub(super) fn last_kept<I: Isa>(
    logits: &[f32],
    weights: &Weights,
    top_k: usize,
    top_p: f32,
) -> Last {
    let has_top_k = 0 < top_k && top_k < logits.len();
    if !has_top_k && top_p >= 1.0 {
        return LAST_OF_ALL;
    }
    let mut candidates: Vec<u64>;
    let mut total: f64;
    if has_top_k {
        candidates = at_least(logits, below_top_k(logits, top_k));
        let (_, &mut last, _) = candidates.select_nth_unstable(top_k - 1);
        if top_p >= 1.0 {
            return (logit_of(last), last as u32 as usize);
        }
        candidates.truncate(top_k);
        candidates.sort_unstable();
        total = 0.0;
        for &key in &candidates {
            total += weigh::<I>(weights, key);
        }
    } else {
        total = weights.sums::<I>(logits).iter().sum();
        // All tokens less likely than this have together less than half of what top_p drops.
        let rare = 0.5 * (1.0 - f64::from(top_p)) * total / logits.len() as f64;
        let margin = (rare.ln() * f64::from(weights.temperature)) as f32;
        candidates = at_least(logits, weights.largest + margin);
        candidates.sort_unstable();
    }
    let enough = f64::from(top_p) * total;
    let mut sum = 0.0;
    for &key in &candidates {
        sum += weigh::<I>(weights, key);
        if sum >= enough {
            return (logit_of(key), key as u32 as usize);
        }
    }
    candidates
        .last()
        .map_or(LAST_OF_ALL, |&key| (logit_of(key), key as u32 as usize))
}

/// Keys of the tokens with at least this logit.
#[inline(always)]
pub(super) fn at_least(logits: &[f32], bound: f32) -> Vec<u64> {
    let mut keys = Vec::new();
    for (id, &logit) in logits.iter().enumerate() {
        if logit >= bound {
            keys.push(key(logit, id));
        }
    }
    keys
}

/// A logit that at least `top_k` tokens reach, and not many more.
///
/// It is the k-th largest of the maxima of disjoint runs of tokens.
#[inline(always)]
pub(super) fn below_top_k(logits: &[f32], top_k: usize) -> f32 {
    const RUN: usize = 32;
    let mut maxima = Vec::with_capacity(logits.len() / RUN + 1);
    for run in logits.chunks(RUN) {
        let mut most = f32::NEG_INFINITY;
        for &logit in run {
            most = if logit > most { logit } else { most };
        }
        maxima.push(key(most, 0));
    }
    if top_k > maxima.len() {
        return f32::NEG_INFINITY;
    }
    let (_, &mut bound, _) = maxima.select_nth_unstable(top_k - 1);
    logit_of(bound)
}
