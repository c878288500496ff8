//! The algebra of attention: an online softmax (Milakov and Gimelshein, 2018).
//!
//! A state `{m, d, o}` stands for attention over some of the tokens: `m` is their largest score, `d`
//! the sum of `e^(score - m)` and `o` the sum of `e^(score - m) * value`.
//!
//! - `update` adds a block of tokens,
//! - `merge` joins the states of two sets of tokens,
//! - `normalize` turns `o` into the output, `o / d`.
//!
//! The PyTorch twin (`attention/reference.py`) and the device code use the same names.

use crate::element::Packed;
use crate::exp::{exp, exp_lanes};
use crate::isa::Isa;
use crate::layout::BLOCK_SIZE;
use crate::norm::sum_lanes;
use crate::tile::{Lines, Panel, Sums};
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

    /// Adds a block: its scores, its values `[16][head_dim]`, and which tokens each query sees.
    ///
    /// N registers hold a number for each token of a block.
    ///
    /// Nothing of a token outside `visible` is used: a slot that no one wrote may hold NaN, and a
    /// weight of zero would not silence it.
    #[inline(always)]
    pub fn update<I: Isa, P: Packed, const N: usize>(
        &mut self,
        scores: &[[f32; BLOCK_SIZE]; R],
        values: Panel<'_, P>,
        visible: &[Range<usize>; R],
    ) {
        let mut factors = [1.0; R];
        let mut weights = [[0.0; BLOCK_SIZE]; R];
        for r in 0..R {
            if visible[r].is_empty() {
                continue;
            }
            let mut row = scores[r];
            if visible[r].len() < BLOCK_SIZE {
                // In 32 bits: one comparison of a register with AVX-512.
                let (first, count) = (visible[r].start as u32, visible[r].len() as u32);
                for (token, score) in (0_u32..).zip(&mut row) {
                    if token.wrapping_sub(first) >= count {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
            // Most blocks leave the maximum as it is; the factor then is exactly 1.
            if is_any_above(&row, self.m[r]) {
                let m = max_lanes(row, self.m[r]);
                factors[r] = exp::<I>(self.m[r] - m);
                self.m[r] = m;
            }
            for score in &mut row {
                *score -= self.m[r];
            }
            weights[r] = exp_lanes::<I, BLOCK_SIZE>(row);
            for token in 0..BLOCK_SIZE {
                self.d[r][token] = I::mul_add(self.d[r][token], factors[r], weights[r][token]);
            }
        }
        if factors != [1.0; R] {
            self.rescale(&factors);
        }
        self.add_values::<I, P, N>(&weights, values, visible);
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

    /// `o += weights * values`, a strip of coordinates at a time.
    #[inline(always)]
    fn add_values<I: Isa, P: Packed, const N: usize>(
        &mut self,
        weights: &[[f32; BLOCK_SIZE]; R],
        values: Panel<'_, P>,
        visible: &[Range<usize>; R],
    ) {
        // A block that all queries see goes as one tile, another one query at a time. The order of
        // the sum is ascending for each query either way.
        let head_dim = self.o.len() / R;
        if visible.iter().any(|seen| seen.len() < BLOCK_SIZE) {
            for (r, seen) in visible.iter().enumerate() {
                let o = &mut self.o[r * head_dim..(r + 1) * head_dim];
                add_some::<I, P>(o, &weights[r], values.units, seen.clone());
            }
            return;
        }
        let strip = N * I::LANES;
        for start in (0..head_dim).step_by(strip) {
            let mut sums = [[I::splat(0.0); N]; R];
            for r in 0..R {
                for n in 0..N {
                    sums[r][n] = I::load(&self.o[r * head_dim + start + n * I::LANES..]);
                }
            }
            let lines = values.lines(start, strip, head_dim);
            let sums = accumulate_block::<I, P, R, N>(sums, weights, lines);
            for r in 0..R {
                for n in 0..N {
                    let o = &mut self.o[r * head_dim + start + n * I::LANES..];
                    I::store(sums[r][n], o);
                }
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
            let (ours, theirs) = (exp::<I>(self.m[r] - m), exp::<I>(other.m[r] - m));
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

/// [`crate::tile::accumulate`] over the tokens of a block, with weights row by row, as they are made.
///
/// `values` are the lines of a block from the first coordinate of a strip on, `head_dim` apart.
#[inline(always)]
fn accumulate_block<I: Isa, P: Packed, const R: usize, const N: usize>(
    sums: Sums<I, R, N>,
    weights: &[[f32; BLOCK_SIZE]; R],
    mut values: Lines<'_, P>,
) -> Sums<I, R, N> {
    let mut sums = sums;
    for line in 0..BLOCK_SIZE / P::DEPTH {
        let units = values.line(line);
        for index in 0..P::DEPTH {
            let mut values = [I::splat(0.0); N];
            for n in 0..N {
                values[n] = P::load::<I>(&units[n * I::LANES..], index);
            }
            for r in 0..R {
                let weight = I::splat(weights[r][line * P::DEPTH + index]);
                for n in 0..N {
                    sums[r][n] = I::mul_add_lanes(weight, values[n], sums[r][n]);
                }
            }
        }
    }
    sums
}

/// Adds the weighted values of some tokens of a block to one query's `o`.
#[inline(always)]
fn add_some<I: Isa, P: Packed>(
    o: &mut [f32],
    weights: &[f32; BLOCK_SIZE],
    values: &[P],
    tokens: Range<usize>,
) {
    let head_dim = o.len();
    for token in tokens {
        let weight = I::splat(weights[token]);
        let line = &values[token / P::DEPTH * head_dim..][..head_dim];
        for start in (0..head_dim).step_by(I::LANES) {
            let value = P::load::<I>(&line[start..], token % P::DEPTH);
            let sum = I::mul_add_lanes(weight, value, I::load(&o[start..]));
            I::store(sum, &mut o[start..]);
        }
    }
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
fn max_lanes(mut lanes: [f32; BLOCK_SIZE], start: f32) -> f32 {
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
