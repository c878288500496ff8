//! Filters that do not keep the head of the order of tokens, or that depend on all logits.
//!
//! A token that is dropped gets the logit -inf.

use crate::{
    isa::{Isa, dispatch::Kernel},
    sampling::{
        order::{largest, last_kept},
        probabilities::{LANES, LAST_OF_ALL, Last, Weights, in_lanes, key},
    },
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
    /// `uniform` in [0, 1) decides whether XTC applies.
    #[inline(always)]
    pub(super) fn apply<I: Isa>(&self, logits: &mut [f32], common: Common, uniform: f64) {
        let temperature = common.temperature;
        let all = Weights::new(largest(logits).unwrap_or(0.0), temperature);
        let mut kept = Kept::new(logits, last_kept::<I>(logits, &all, common.top_k, 1.0));
        if self.typical_p < 1.0 {
            kept.typical::<I>(temperature, self.typical_p);
        }
        let last = last_kept::<I>(&kept.logits, &kept.weights(temperature), 0, common.top_p);
        if last != LAST_OF_ALL {
            kept.retain(|place, logit| is_before(last, place, logit));
        }
        if common.min_p > 0.0 {
            let weights = kept.weights(temperature);
            kept.retain(|place, logit| weights.weight::<I>(logit, place) >= common.min_p);
        }
        if uniform < f64::from(self.xtc_probability) {
            kept.exclude_top::<I>(temperature, self.xtc_threshold);
        }
        logits.fill(f32::NEG_INFINITY);
        for (&id, &logit) in kept.ids.iter().zip(&kept.logits) {
            logits[id as usize] = logit;
        }
    }
}

/// Whether a token is not behind another in the order.
#[inline(always)]
fn is_before(last: Last, id: usize, logit: f32) -> bool {
    logit > last.0 || logit == last.0 && id <= last.1
}

/// The tokens that are left, in order of ids: their places are in the order of their ids, too.
struct Kept {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl Kept {
    fn new(logits: &[f32], last: Last) -> Self {
        let (mut ids, mut kept) = (Vec::new(), Vec::new());
        for (id, &logit) in logits.iter().enumerate() {
            if logit > f32::NEG_INFINITY && (last == LAST_OF_ALL || is_before(last, id, logit)) {
                ids.push(id as u32);
                kept.push(logit);
            }
        }
        Self { ids, logits: kept }
    }

    fn weights(&self, temperature: f32) -> Weights {
        Weights::new(largest(&self.logits).unwrap_or(0.0), temperature)
    }

    #[inline(always)]
    fn retain(&mut self, is_kept: impl Fn(usize, f32) -> bool) {
        let mut num_kept = 0;
        for place in 0..self.logits.len() {
            let (id, logit) = (self.ids[place], self.logits[place]);
            self.ids[num_kept] = id;
            self.logits[num_kept] = logit;
            num_kept += usize::from(is_kept(place, logit));
        }
        self.ids.truncate(num_kept);
        self.logits.truncate(num_kept);
    }

    /// Keeps the tokens whose surprise is nearest to the entropy, the fewest whose share reaches `p`, and equals of the last.
    #[inline(always)]
    fn typical<I: Isa>(&mut self, temperature: f32, p: f32) {
        let weights = self.weights(temperature);
        let total: f64 = weights.sums::<I>(&self.logits).iter().sum();
        let log_total = total.ln() as f32;
        // Surprise: minus the log of the probability.
        let surprise = |logit: f32| log_total - (logit - weights.largest) / temperature;
        let mut entropy = [0.0_f64; LANES];
        for (run, logits) in in_lanes(&self.logits).enumerate() {
            for lane in 0..LANES {
                let weight = weights.weight::<I>(logits[lane], run * LANES + lane);
                let part = f64::from(weight) * f64::from(surprise(logits[lane]));
                entropy[lane] += if weight > 0.0 { part } else { 0.0 };
            }
        }
        let entropy = (entropy.iter().sum::<f64>() / total) as f32;
        let distance = |logit: f32| (surprise(logit) - entropy).abs();
        let mut tokens = vec![(0.0, 0.0); self.logits.len()];
        for (place, token) in tokens.iter_mut().enumerate() {
            let logit = self.logits[place];
            *token = (distance(logit), weights.weight::<I>(logit, place));
        }
        let bound = distance_of_share(&mut tokens, f64::from(p) * total);
        self.retain(|_, logit| distance(logit) <= bound);
    }

    /// Drops all tokens with a share of at least `threshold` but the last of them in the order.
    #[inline(always)]
    fn exclude_top<I: Isa>(&mut self, temperature: f32, threshold: f32) {
        let weights = self.weights(temperature);
        let total: f64 = weights.sums::<I>(&self.logits).iter().sum();
        let min_weight = f64::from(threshold) * total;
        let is_top =
            |place: usize, logit: f32| f64::from(weights.weight::<I>(logit, place)) >= min_weight;
        let mut last = None;
        for (place, &logit) in self.logits.iter().enumerate() {
            if is_top(place, logit) {
                last = last.max(Some(key(logit, place)));
            }
        }
        self.retain(|place, logit| !is_top(place, logit) || Some(key(logit, place)) == last);
    }
}

/// Drops what is more than `n` standard deviations below the largest of the logits that are left.
pub(super) struct TopNSigma<'a> {
    pub(super) logits: &'a mut [f32],
    pub(super) n: f32,
}

impl Kernel for TopNSigma<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let logits = self.logits;
        let Some(largest_logit) = largest(logits) else {
            return;
        };
        let mut sums = [0.0_f64; LANES];
        let mut counts = [0.0_f64; LANES];
        for run in in_lanes(logits) {
            for lane in 0..LANES {
                let is_left = run[lane] > f32::NEG_INFINITY;
                sums[lane] += if is_left { f64::from(run[lane]) } else { 0.0 };
                counts[lane] += if is_left { 1.0 } else { 0.0 };
            }
        }
        let count: f64 = counts.iter().sum();
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
        let bound = (f64::from(largest_logit) - f64::from(self.n) * deviation) as f32;
        for logit in logits {
            *logit = if *logit < bound {
                f32::NEG_INFINITY
            } else {
                *logit
            };
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
