//! Filters that do not keep the head of the order of tokens, or that depend on all logits.
//!
//! A token that is dropped gets the logit -inf.

use super::draw::{largest, last_kept};
use crate::{
    isa::Isa,
    ops::probabilities::{LANES, LAST_OF_ALL, Last, Weights, in_lanes, key},
};

/// What is dropped beside top-k, top-p and min-p.
#[derive(Debug, Clone, Copy)]
pub struct Filters {
    /// Tokens more than so many standard deviations below the largest logit are dropped (Tang et al., 2024, as in llama.cpp:
    /// before temperature, over the tokens that are left); 0 is off.
    pub top_n_sigma: f32,
    /// Tokens are kept whose surprise is nearest to the expected one, until their share reaches this (Meister et al., 2022,
    /// as in `transformers`); 1 is off.
    pub typical_p: f32,
    /// With this probability, of the tokens with a share of at least the threshold all but the least likely are dropped
    /// ("exclude top choices", by p-e-w, as in llama.cpp); 0 is off.
    pub xtc_probability: f32,
    pub xtc_threshold: f32,
}

impl Default for Filters {
    fn default() -> Self {
        Self {
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.0,
        }
    }
}

/// The filters that every request has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Common {
    pub(super) temperature: f32,
    pub(super) top_k: usize,
    pub(super) top_p: f32,
    pub(super) min_p: f32,
}

impl Filters {
    /// Whether something comes between top-k, top-p and the draw.
    pub(super) fn narrow(&self) -> bool {
        self.typical_p < 1.0 || self.xtc_probability > 0.0
    }

    /// Drops what temperature, top-k, typical-p, top-p, min-p and XTC drop, in this order.
    ///
    /// `coin` in [0, 1) decides whether XTC applies.
    #[inline(always)]
    pub(super) fn apply<I: Isa>(&self, logits: &mut [f32], common: Common, coin: f64) {
        let weights = |logits: &[f32]| Weights {
            largest: largest(logits).unwrap_or(0.0),
            temperature: common.temperature,
            floor: 0.0,
            last: LAST_OF_ALL,
        };
        let last = last_kept::<I>(logits, &weights(logits), common.top_k, 1.0);
        drop_after(logits, last);
        if self.typical_p < 1.0 {
            typical::<I>(logits, &weights(logits), self.typical_p);
        }
        let last = last_kept::<I>(logits, &weights(logits), 0, common.top_p);
        drop_after(logits, last);
        let mut kept = weights(logits);
        kept.floor = common.min_p;
        for (id, logit) in logits.iter_mut().enumerate() {
            if kept.weight::<I>(*logit, id) == 0.0 {
                *logit = f32::NEG_INFINITY;
            }
        }
        if coin < f64::from(self.xtc_probability) {
            exclude_top::<I>(logits, &weights(logits), self.xtc_threshold);
        }
    }
}

/// Drops the tokens behind one in the order.
fn drop_after(logits: &mut [f32], last: Last) {
    if last == LAST_OF_ALL {
        return;
    }
    for (id, logit) in logits.iter_mut().enumerate() {
        if *logit < last.0 || *logit == last.0 && id > last.1 {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Drops what is more than `n` standard deviations below the largest of the logits that are left.
pub(super) fn top_n_sigma(logits: &mut [f32], n: f32) {
    let mut sums = [0.0_f64; LANES];
    let mut counts = [0_u32; LANES];
    let mut most = f32::NEG_INFINITY;
    for run in in_lanes(logits) {
        for lane in 0..LANES {
            let is_left = run[lane] > f32::NEG_INFINITY;
            sums[lane] += if is_left { f64::from(run[lane]) } else { 0.0 };
            counts[lane] += u32::from(is_left);
            most = most.max(run[lane]);
        }
    }
    let count = f64::from(counts.iter().sum::<u32>());
    let mean = sums.iter().sum::<f64>() / count;
    let mut squares = [0.0_f64; LANES];
    for run in in_lanes(logits) {
        for lane in 0..LANES {
            let distance = f64::from(run[lane]) - mean;
            let is_left = run[lane] > f32::NEG_INFINITY;
            squares[lane] += if is_left { distance * distance } else { 0.0 };
        }
    }
    let deviation = (squares.iter().sum::<f64>() / count).sqrt();
    let bound = (f64::from(most) - f64::from(n) * deviation) as f32;
    for logit in logits {
        if *logit < bound {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Keeps the tokens whose surprise is nearest to the entropy, the fewest whose share reaches `p`, and equals of the last.
#[inline(always)]
fn typical<I: Isa>(logits: &mut [f32], weights: &Weights, p: f32) {
    let total: f64 = weights.sums::<I>(logits).iter().sum();
    let log_total = total.ln() as f32;
    // Surprise: minus the log of the probability.
    let surprise = |logit: f32| log_total - (logit - weights.largest) / weights.temperature;
    let mut entropy = [0.0_f64; LANES];
    for (run, logits) in in_lanes(logits).enumerate() {
        for lane in 0..LANES {
            let weight = weights.weight::<I>(logits[lane], run * LANES + lane);
            let part = f64::from(weight) * f64::from(surprise(logits[lane]));
            entropy[lane] += if weight > 0.0 { part } else { 0.0 };
        }
    }
    let entropy = (entropy.iter().sum::<f64>() / total) as f32;
    let mut tokens = Vec::new();
    for (id, &logit) in logits.iter().enumerate() {
        let weight = weights.weight::<I>(logit, id);
        if weight > 0.0 {
            tokens.push(((surprise(logit) - entropy).abs(), weight));
        }
    }
    let bound = distance_of_share(&mut tokens, f64::from(p) * total);
    for (id, logit) in logits.iter_mut().enumerate() {
        let is_kept =
            weights.weight::<I>(*logit, id) > 0.0 && (surprise(*logit) - entropy).abs() <= bound;
        if !is_kept {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// The distance up to which the weights of (distance, weight) reach a sum.
fn distance_of_share(mut tokens: &mut [(f32, f32)], mut enough: f64) -> f32 {
    // Halves of a half: as quickselect, by weight.
    while tokens.len() > 1 {
        let middle = tokens.len() / 2;
        tokens.select_nth_unstable_by(middle, |a, b| a.0.total_cmp(&b.0));
        let sum: f64 = tokens[..middle]
            .iter()
            .map(|token| f64::from(token.1))
            .sum();
        if sum >= enough {
            tokens = &mut tokens[..middle];
        } else {
            enough -= sum;
            tokens = &mut tokens[middle..];
        }
    }
    tokens.first().map_or(f32::INFINITY, |token| token.0)
}

/// Drops all tokens with a share of at least `threshold` but the last of them in the order.
#[inline(always)]
fn exclude_top<I: Isa>(logits: &mut [f32], weights: &Weights, threshold: f32) {
    let total: f64 = weights.sums::<I>(logits).iter().sum();
    let least = f64::from(threshold) * total;
    let mut top = Vec::new();
    for (id, &logit) in logits.iter().enumerate() {
        let weight = weights.weight::<I>(logit, id);
        if weight > 0.0 && f64::from(weight) >= least {
            top.push(key(logit, id));
        }
    }
    let last = top.iter().copied().max();
    for key in top {
        if Some(key) != last {
            logits[key as u32 as usize] = f32::NEG_INFINITY;
        }
    }
}
