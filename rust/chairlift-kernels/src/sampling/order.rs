//! The order of tokens: by logit, the largest first, and among equals by id, and which of them come first.

use crate::{
    isa::Isa,
    sampling::probabilities::{
        LANES, LAST_OF_ALL, Last, Weights, in_lanes, key, logit_of, weight_of_key,
    },
};

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
        candidates = keys_reaching(logits, below_top_k(logits, top_k));
        let (_, &mut last, _) = candidates.select_nth_unstable(top_k - 1);
        if top_p >= 1.0 {
            return (logit_of(last), last as u32 as usize);
        }
        candidates.truncate(top_k);
        candidates.sort_unstable();
        total = 0.0;
        for &key in &candidates {
            total += weight_of_key::<I>(weights, key);
        }
    } else {
        total = weights.sums::<I>(logits).iter().sum();
        // All tokens less likely than this have together less than half of what top_p drops.
        let rare = 0.5 * (1.0 - f64::from(top_p)) * total / logits.len() as f64;
        let margin = (rare.ln() * f64::from(weights.temperature)) as f32;
        candidates = keys_reaching(logits, weights.largest + margin);
        candidates.sort_unstable();
    }
    let enough = f64::from(top_p) * total;
    let mut sum = 0.0;
    for &key in &candidates {
        sum += weight_of_key::<I>(weights, key);
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
pub(super) fn keys_reaching(logits: &[f32], bound: f32) -> Vec<u64> {
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
        let mut largest_of_run = f32::NEG_INFINITY;
        for &logit in run {
            largest_of_run = if logit > largest_of_run {
                logit
            } else {
                largest_of_run
            };
        }
        maxima.push(key(largest_of_run, 0));
    }
    if top_k > maxima.len() {
        return f32::NEG_INFINITY;
    }
    let (_, &mut bound, _) = maxima.select_nth_unstable(top_k - 1);
    logit_of(bound)
}
