//! The probabilities of tokens before they are normalized, and the order of tokens.

use crate::isa::{Isa, exp::exp};

/// Lanes of a partial sum, on every instruction set.
pub(crate) const LANES: usize = 16;
/// Tokens whose weights are summed before the search for the drawn token looks at them.
pub(crate) const CHUNK: usize = 512;

/// Logits in runs of a number that the compiler knows; tokens that there are not have no weight.
#[inline(always)]
pub(crate) fn in_lanes(logits: &[f32]) -> impl Iterator<Item = [f32; LANES]> {
    let (whole, rest) = logits.as_chunks::<LANES>();
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    whole.iter().copied().chain([last])
}

/// A token's place in the order: a smaller key is an earlier token.
///
/// The logit's bits, mapped so that integers order as the floats do, above the id.
#[inline(always)]
pub(crate) fn key(logit: f32, id: usize) -> u64 {
    let bits = (logit + 0.0).to_bits(); // -0.0 equals 0.0
    let ascending = if bits >> 31 == 0 {
        bits | 0x8000_0000
    } else {
        !bits
    };
    u64::from(!ascending) << 32 | id as u64
}

/// The logit of a key.
pub(crate) fn logit_of(key: u64) -> f32 {
    let ascending = !((key >> 32) as u32);
    f32::from_bits(if ascending >> 31 == 1 {
        ascending & 0x7fff_ffff
    } else {
        !ascending
    })
}

/// The last token that is kept: its logit and id.
pub(crate) type Last = (f32, usize);
pub(crate) const LAST_OF_ALL: Last = (f32::NEG_INFINITY, usize::MAX);

/// Unnormalized probabilities of the tokens that the filters keep; 1 for the likeliest.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub(crate) largest: f32,
    pub(crate) temperature: f32,
    /// `min_p`: lesser weights are dropped.
    pub(crate) floor: f32,
    /// `top_k` and `top_p`: tokens after this one are dropped.
    pub(crate) last: Last,
}

impl Weights {
    /// Weighs all tokens at a temperature; no filter drops any.
    pub(crate) fn new(largest: f32, temperature: f32) -> Self {
        Self {
            largest,
            temperature,
            floor: 0.0,
            last: LAST_OF_ALL,
        }
    }

    #[inline(always)]
    pub(crate) fn weight<I: Isa>(&self, logit: f32, id: usize) -> f32 {
        let weight = exp::<I>((logit - self.largest) / self.temperature);
        let (last_logit, last_id) = self.last;
        let is_kept =
            weight >= self.floor && (logit > last_logit || logit == last_logit && id <= last_id);
        if is_kept { weight } else { 0.0 }
    }

    /// Sums over each chunk of tokens, in a fixed order.
    #[inline(always)]
    pub(crate) fn sums<I: Isa>(&self, logits: &[f32]) -> Vec<f64> {
        let mut sums = Vec::with_capacity(logits.len().div_ceil(CHUNK));
        for (chunk, logits) in logits.chunks(CHUNK).enumerate() {
            let mut lanes = [0.0; LANES];
            for (run, logits) in in_lanes(logits).enumerate() {
                for lane in 0..LANES {
                    let id = chunk * CHUNK + run * LANES + lane;
                    lanes[lane] += f64::from(self.weight::<I>(logits[lane], id));
                }
            }
            sums.push(lanes.iter().sum());
        }
        sums
    }
}

/// The sum of the weights of all tokens at temperature 1, in the order of [`Weights::sums`].
#[inline(always)]
pub(crate) fn total<I: Isa>(logits: &[f32], largest: f32) -> f64 {
    let mut total = 0.0;
    for logits in logits.chunks(CHUNK) {
        let mut lanes = [0.0; LANES];
        for logits in in_lanes(logits) {
            for lane in 0..LANES {
                lanes[lane] += f64::from(exp::<I>(logits[lane] - largest));
            }
        }
        total += lanes.iter().sum::<f64>();
    }
    total
}

/// The weight of the token of a key.
#[inline(always)]
pub(crate) fn weight_of_key<I: Isa>(weights: &Weights, key: u64) -> f64 {
    f64::from(weights.weight::<I>(logit_of(key), key as u32 as usize))
}
