//! The algebra of attention: an online softmax (Milakov and Gimelshein, 2018).
//!
//! A state `{m, d, o}` stands for attention over some of the tokens: `m` is about their largest score, `d`
//! the sum of `2^(score - m)` and `o` the sum of `2^(score - m) * value`, where scores are scaled such that
//! powers of 2 stand for powers of e. A score may be a little above `m`, as in FlashAttention-4: few spans then
//! change `m`, which is what costs. Weights and sums are larger by it, with as many significant bits.
//!
//! - `update` adds a span of tokens,
//! - `normalize` turns `o` into the output, `o / d`.
//!
//! The PyTorch twin (`tests/attention/reference.py`) and the device code use the same names.

use crate::{
    attention::{
        kv_layout::BLOCK_SIZE,
        span::AddValues,
        span_types::{KvFormat, PerToken, SPAN, Scales, Span, factors_of},
    },
    gemm::operand::Operand,
    isa::{Isa, dispatch::noinline, element::Packed, exp::exp2},
    ops::norm::sum_lanes,
};
use std::marker::PhantomData;
use std::ops::Range;

/// How far a score may be above `m`; a weight is 2 to this power then.
const SLACK: f32 = 8.0;

/// The states of R queries.
pub struct SoftmaxState<'a, const R: usize> {
    /// A score so far; none is more than [`SLACK`] above it.
    pub m: &'a mut [f32; R],
    /// Denominator relative to `m`, in as many parts as a block has tokens: only `normalize` joins them.
    pub d: &'a mut [[f32; BLOCK_SIZE]; R],
    /// Numerator relative to `m`, `[R][head_dim]`.
    pub o: &'a mut [f32],
}

impl<const R: usize> SoftmaxState<'_, R> {
    /// Becomes the state of no token.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.m.fill(f32::NEG_INFINITY);
        self.d.fill([0.0; BLOCK_SIZE]);
        self.o.fill(0.0);
    }

    /// Adds a span, of which each query sees some tokens: `scores` times `scale`, which is positive and has
    /// the factor `log2 e`, and its values. Where K says so, keys were codes, whose scales then stand for `scale`,
    /// and values are. The weights, as factors F that may round them, are left in `weights`; the denominator adds
    /// them as they are.
    ///
    /// N registers hold a number for each token of a block, V are some coordinates of one query.
    ///
    /// Nothing of a token outside `visible` is used: a slot that no one wrote may hold NaN, and a
    /// weight of zero would not silence it.
    #[inline(always)]
    pub fn update<I: Isa, F: Operand<P>, P: Packed, K: KvFormat, const N: usize, const V: usize>(
        &mut self,
        scores: &mut [PerToken<f32>; R],
        scale: f32,
        weights: &mut [PerToken<F>; R],
        span: &Span<'_, P>,
        scales: Scales<'_>,
        visible: &[Range<usize>; R],
    ) {
        let mut factors = [1.0; R];
        for r in 0..R {
            if !visible[r].is_empty() {
                let weights = &mut weights[r];
                factors[r] = self.softmax_weights::<I, F, P, K>(
                    r,
                    &mut scores[r],
                    scale,
                    weights,
                    scales,
                    &visible[r],
                );
            }
        }
        // Most spans leave `m` as it is; the factor then is exactly 1.
        if factors != [1.0; R] {
            self.rescale(&factors);
        }
        noinline::<I, _>(AddValues::<F, P, K, R, N, V> {
            o: self.o,
            weights,
            span,
            visible,
            kept: PhantomData,
        });
    }

    /// Makes weights of the scores of query `r` that are visible, and adds them to its denominator; gives what its
    /// `o` is to be multiplied by.
    #[inline(always)]
    fn softmax_weights<I: Isa, F: Operand<P>, P: Packed, K: KvFormat>(
        &mut self,
        r: usize,
        scores: &mut PerToken<f32>,
        scale: f32,
        weights: &mut PerToken<F>,
        scales: Scales<'_>,
        visible: &Range<usize>,
    ) -> f32 {
        // A number that the compiler does not know keeps it from taking all blocks side by side, for
        // which AVX2 has too few registers.
        let blocks = visible.end.div_ceil(BLOCK_SIZE);
        let scores = &mut scores[..blocks];
        let (mut scale, mut keys) = (scale, scales.keys);
        if visible.len() < SPAN {
            // Scaled first: the scale of a token that is not there was never written.
            scale_visible::<I, K>(scores, scale, keys, visible);
            (scale, keys) = (1.0, Scales::NONE.keys);
        }
        // Copies: the compiler knows that nothing else changes them.
        let (mut m, mut d) = (self.m[r], self.d[r]);
        let mut factor = 1.0;
        let peaks = peaks::<I, K>(scores, scale, keys);
        if I::above(peaks, I::splat(m + SLACK)) != 0 {
            let peak = largest::<I>(peaks, m);
            factor = exp2::<I>(m - peak);
            m = peak;
            for d in &mut d {
                *d *= factor;
            }
        }
        let scales = keys.iter().zip(scales.values);
        for ((scores, weights), (keys, values)) in scores.iter().zip(weights).zip(scales) {
            let mut numbers = *scores;
            for (number, scale) in numbers.iter_mut().zip(&factors_of::<K>(scale, keys)) {
                // Two roundings, as of `m`: no score is far above it, however large both are.
                *number = *number * scale - m;
            }
            I::exp2_block(&mut numbers);
            for (d, number) in d.iter_mut().zip(&numbers) {
                *d += number;
            }
            if K::IS_INT8 {
                for (number, scale) in numbers.iter_mut().zip(values) {
                    *number *= scale;
                }
            }
            F::store::<I>(&numbers, weights);
        }
        (self.m[r], self.d[r]) = (m, d);
        factor
    }

    #[inline(always)]
    fn rescale(&mut self, factors: &[f32; R]) {
        let head_dim = self.o.len() / R;
        for (o, factor) in self.o.chunks_exact_mut(head_dim).zip(factors) {
            for o in o {
                *o *= factor;
            }
        }
    }

    /// Adds a token whose value is zero, by its score times `log2 e`.
    #[inline(always)]
    pub fn add_sink<I: Isa>(&mut self, score: f32) {
        let head_dim = self.o.len() / R;
        for r in 0..R {
            let m = self.m[r];
            let peak = if score > m { score } else { m };
            let factor = exp2::<I>(m - peak);
            for number in &mut self.d[r] {
                *number *= factor;
            }
            for number in &mut self.o[r * head_dim..(r + 1) * head_dim] {
                *number *= factor;
            }
            self.d[r][0] += exp2::<I>(score - peak);
            self.m[r] = peak;
        }
    }

    /// Turns `o` into the attention output.
    #[inline(always)]
    pub fn normalize(&mut self) {
        let head_dim = self.o.len() / R;
        for r in 0..R {
            let d = sum_lanes(self.d[r]);
            for o in &mut self.o[r * head_dim..(r + 1) * head_dim] {
                *o /= d;
            }
        }
    }
}

/// Scales the scores of the visible tokens; those of all others become that of no token.
#[inline(always)]
fn scale_visible<I: Isa, K: KvFormat>(
    scores: &mut [[f32; BLOCK_SIZE]],
    scale: f32,
    keys: &PerToken<f32>,
    visible: &Range<usize>,
) {
    let bits = (1_u64 << (visible.end - 1) << 1).wrapping_sub(1 << visible.start);
    for (block, (scores, keys)) in scores.iter_mut().zip(keys).enumerate() {
        let factors = factors_of::<K>(scale, keys);
        for start in (0..BLOCK_SIZE).step_by(I::LANES) {
            let scaled = I::mul_lanes(I::load(&scores[start..]), I::load(&factors[start..]));
            let bits = (bits >> (block * BLOCK_SIZE + start)) as u32;
            let seen = I::select_lanes(bits, scaled, I::splat(f32::NEG_INFINITY));
            I::store(seen, &mut scores[start..]);
        }
    }
}

/// The largest of each lane, scaled.
#[inline(always)]
fn peaks<I: Isa, K: KvFormat>(
    scores: &[[f32; BLOCK_SIZE]],
    scale: f32,
    keys: &PerToken<f32>,
) -> I::Vector {
    let mut peaks = I::splat(f32::NEG_INFINITY);
    for (scores, keys) in scores.iter().zip(keys) {
        for start in (0..BLOCK_SIZE).step_by(I::LANES) {
            let mut scores = I::load(&scores[start..]);
            if K::IS_INT8 {
                scores = I::mul_lanes(scores, I::load(&keys[start..]));
            }
            peaks = I::max_lanes(scores, peaks);
        }
    }
    if K::IS_INT8 {
        peaks
    } else {
        I::mul_lanes(peaks, I::splat(scale))
    }
}

/// Largest of the lanes and `start`.
#[inline(always)]
fn largest<I: Isa>(peaks: I::Vector, start: f32) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; BLOCK_SIZE];
    I::store(peaks, &mut lanes);
    let mut width = I::LANES / 2;
    while width > 0 {
        for lane in 0..width {
            let (a, b) = (lanes[lane], lanes[lane + width]);
            lanes[lane] = if a > b { a } else { b };
        }
        width /= 2;
    }
    if lanes[0] > start { lanes[0] } else { start }
}
