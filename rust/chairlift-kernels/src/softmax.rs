//! The algebra of attention: an online softmax (Milakov and Gimelshein, 2018).
//!
//! A state `{m, d, o}` stands for attention over some of the tokens: `m` is their largest score, `d`
//! the sum of `2^(score - m)` and `o` the sum of `2^(score - m) * value`, where scores are scaled such that
//! powers of 2 stand for powers of e.
//!
//! - `update` adds a span of tokens,
//! - `merge` joins the states of two sets of tokens,
//! - `normalize` turns `o` into the output, `o / d`.
//!
//! The PyTorch twin (`attention/reference.py`) and the device code use the same names.

use crate::dispatch::apart;
use crate::element::Packed;
use crate::exp::exp2;
use crate::factor::Factor;
use crate::isa::Isa;
use crate::layout::BLOCK_SIZE;
use crate::norm::sum_lanes;
use crate::span::{AddValues, PerToken, SPAN, Span};
use crate::stored::{Kept, Scales};
use std::marker::PhantomData;
use std::ops::Range;

/// The states of R queries.
pub struct State<'a, const R: usize> {
    /// Largest score so far.
    pub m: &'a mut [f32; R],
    /// Denominator relative to `m`, in as many parts as a block has tokens: only `normalize` joins them.
    pub d: &'a mut [[f32; BLOCK_SIZE]; R],
    /// Numerator relative to `m`, `[R][head_dim]`.
    pub o: &'a mut [f32],
}

impl<const R: usize> State<'_, R> {
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
    pub fn update<I: Isa, F: Factor<P>, P: Packed, K: Kept, const N: usize, const V: usize>(
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
            if visible[r].is_empty() {
                continue;
            }
            // A number that the compiler does not know keeps it from taking all blocks side by side, for
            // which AVX2 has too few registers.
            let blocks = visible[r].end.div_ceil(BLOCK_SIZE);
            let scores = &mut scores[r][..blocks];
            let mut visible_keys;
            let mut keys = scales.keys;
            if visible[r].len() < SPAN {
                replace_hidden(scores, &visible[r], f32::NEG_INFINITY);
                if K::IS_INT8 {
                    // Nobody has written the scale of a token that is not there.
                    visible_keys = *scales.keys;
                    replace_hidden(&mut visible_keys, &visible[r], 1.0);
                    keys = &visible_keys;
                }
            }
            // Copies: the compiler knows that nothing else changes them.
            let (mut m, mut d) = (self.m[r], self.d[r]);
            // Most spans leave the maximum as it is; the factor then is exactly 1.
            let peaks = peaks::<I, K>(scores, scale, keys);
            if is_any_above(&peaks, m) {
                let peak = max_of(peaks, m);
                factors[r] = exp2::<I>(m - peak);
                m = peak;
                for d in &mut d {
                    *d *= factors[r];
                }
            }
            let scales = keys.iter().zip(scales.values);
            for ((scores, weights), (keys, values)) in
                scores.iter().zip(&mut weights[r]).zip(scales)
            {
                let mut numbers = *scores;
                for (number, scale) in numbers.iter_mut().zip(&factors_of::<K>(scale, keys)) {
                    // Two roundings, as of `m`: the largest is exactly 0, and none is above.
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
        }
        if factors != [1.0; R] {
            self.rescale(&factors);
        }
        apart::<I, _>(AddValues::<F, P, K, R, N, V> {
            o: self.o,
            weights,
            span,
            visible,
            kept: PhantomData,
        });
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

    /// Joins the states of the same queries over other tokens.
    #[inline(always)]
    pub fn merge<I: Isa>(&mut self, other: &State<'_, R>) {
        let head_dim = self.o.len() / R;
        for r in 0..R {
            if sum_lanes(other.d[r]) == 0.0 {
                continue;
            }
            let m = if other.m[r] > self.m[r] {
                other.m[r]
            } else {
                self.m[r]
            };
            let (ours, theirs) = (exp2::<I>(self.m[r] - m), exp2::<I>(other.m[r] - m));
            self.m[r] = m;
            for (d, other) in self.d[r].iter_mut().zip(&other.d[r]) {
                *d = I::mul_add(*d, ours, other * theirs);
            }
            let range = r * head_dim..(r + 1) * head_dim;
            for (o, other) in self.o[range.clone()].iter_mut().zip(&other.o[range]) {
                *o = I::mul_add(*o, ours, other * theirs);
            }
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

/// Gives all tokens but the visible ones another number.
#[inline(always)]
fn replace_hidden(numbers: &mut [[f32; BLOCK_SIZE]], visible: &Range<usize>, other: f32) {
    // In 32 bits: one comparison of a register with AVX-512.
    let (first, count) = (visible.start as u32, visible.len() as u32);
    for (start, numbers) in (0_u32..).step_by(BLOCK_SIZE).zip(numbers) {
        for (token, number) in (start..).zip(numbers) {
            if token.wrapping_sub(first) >= count {
                *number = other;
            }
        }
    }
}

/// What the scores of a block are multiplied by.
#[inline(always)]
fn factors_of<K: Kept>(scale: f32, keys: &[f32; BLOCK_SIZE]) -> [f32; BLOCK_SIZE] {
    if K::IS_INT8 {
        *keys
    } else {
        [scale; BLOCK_SIZE]
    }
}

/// The largest of each lane, scaled.
#[inline(always)]
fn peaks<I: Isa, K: Kept>(
    scores: &[[f32; BLOCK_SIZE]],
    scale: f32,
    keys: &PerToken<f32>,
) -> [f32; BLOCK_SIZE] {
    let mut peaks = [0.0; BLOCK_SIZE];
    if K::IS_INT8 {
        for start in (0..BLOCK_SIZE).step_by(I::LANES) {
            let mut peak = I::splat(f32::NEG_INFINITY);
            for (scores, keys) in scores.iter().zip(keys) {
                let scaled = I::mul_lanes(I::load(&scores[start..]), I::load(&keys[start..]));
                peak = I::max_lanes(scaled, peak);
            }
            I::store(peak, &mut peaks[start..]);
        }
        return peaks;
    }
    // By registers: of the plain loop the compiler makes pairs of lanes.
    for start in (0..BLOCK_SIZE).step_by(I::LANES) {
        let mut peak = I::load(&scores[0][start..]);
        for scores in &scores[1..] {
            peak = I::max_lanes(I::load(&scores[start..]), peak);
        }
        I::store(peak, &mut peaks[start..]);
    }
    for peak in &mut peaks {
        *peak *= scale;
    }
    peaks
}

#[inline(always)]
fn is_any_above(lanes: &[f32; BLOCK_SIZE], bound: f32) -> bool {
    let mut is_above = false;
    for lane in lanes {
        is_above |= *lane > bound;
    }
    is_above
}

/// Largest of the lanes and `start`.
#[inline(always)]
fn max_of(mut lanes: [f32; BLOCK_SIZE], start: f32) -> f32 {
    let mut width = BLOCK_SIZE / 2;
    while width > 0 {
        for lane in 0..width {
            let (a, b) = (lanes[lane], lanes[lane + width]);
            lanes[lane] = if a > b { a } else { b };
        }
        width /= 2;
    }
    if lanes[0] > start { lanes[0] } else { start }
}
