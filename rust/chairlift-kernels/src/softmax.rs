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
use crate::tile::{Panel, accumulate};
use std::ops::Range;

/// The states of R queries.
pub struct State<'a, const R: usize> {
    /// Largest score so far.
    pub m: &'a mut [f32; R],
    /// Denominator relative to `m`.
    pub d: &'a mut [f32; R],
    /// Numerator relative to `m`, `[R][head_dim]`.
    pub o: &'a mut [f32],
}

impl<const R: usize> State<'_, R> {
    /// Becomes the state of no token.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.m.fill(f32::NEG_INFINITY);
        self.d.fill(0.0);
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
        // Token-major, as `accumulate` takes it.
        let mut weights = [[0.0; R]; BLOCK_SIZE];
        for r in 0..R {
            if visible[r].is_empty() {
                continue;
            }
            let mut row = scores[r];
            // In 32 bits: one comparison of a register with AVX-512.
            let (first, count) = (visible[r].start as u32, visible[r].len() as u32);
            for (token, score) in (0_u32..).zip(&mut row) {
                if token.wrapping_sub(first) >= count {
                    *score = f32::NEG_INFINITY;
                }
            }
            let m = max_lanes(row, self.m[r]);
            factors[r] = exp::<I>(self.m[r] - m);
            for score in &mut row {
                *score -= m;
            }
            let row = exp_lanes::<I, BLOCK_SIZE>(row);
            self.m[r] = m;
            self.d[r] = I::mul_add(self.d[r], factors[r], sum_lanes(row));
            for token in 0..BLOCK_SIZE {
                weights[token][r] = row[token];
            }
        }
        self.add_values::<I, P, N>(&factors, &weights, values, visible);
    }

    /// `o = o * factor + weights * values`, a strip of coordinates at a time.
    #[inline(always)]
    fn add_values<I: Isa, P: Packed, const N: usize>(
        &mut self,
        factors: &[f32; R],
        weights: &[[f32; R]; BLOCK_SIZE],
        values: Panel<'_, P>,
        visible: &[Range<usize>; R],
    ) {
        // Tokens that all queries see go as one tile, the others one query at a time. The order of
        // the sum is ascending for each query either way.
        let mut shared = BLOCK_SIZE;
        for seen in visible {
            shared = if seen.start == 0 {
                shared.min(seen.end)
            } else {
                0
            };
        }
        let head_dim = self.o.len() / R;
        let strip = N * I::LANES;
        for start in (0..head_dim).step_by(strip) {
            let mut sums = [[I::splat(0.0); N]; R];
            for r in 0..R {
                let factor = I::splat(factors[r]);
                for n in 0..N {
                    let o = I::load(&self.o[r * head_dim + start + n * I::LANES..]);
                    // A sum of -0 keeps its sign only with -0 added.
                    sums[r][n] = I::mul_add_lanes(o, factor, I::splat(-0.0));
                }
            }
            let lines = values.lines(start, strip, head_dim);
            let sums = accumulate::<I, P, R, N>(sums, &weights[..shared], lines);
            for r in 0..R {
                for n in 0..N {
                    let o = &mut self.o[r * head_dim + start + n * I::LANES..];
                    I::store(sums[r][n], o);
                }
            }
        }
        for (r, seen) in visible.iter().enumerate() {
            for token in shared.max(seen.start)..seen.end {
                let weight = I::splat(weights[token][r]);
                let line = &values.units[token / P::DEPTH * head_dim..][..head_dim];
                let o = &mut self.o[r * head_dim..(r + 1) * head_dim];
                for start in (0..head_dim).step_by(I::LANES) {
                    let value = P::load::<I>(&line[start..], token % P::DEPTH);
                    let sum = I::mul_add_lanes(weight, value, I::load(&o[start..]));
                    I::store(sum, &mut o[start..]);
                }
            }
        }
    }

    /// Joins the states of the same queries over other tokens.
    #[inline(always)]
    pub fn merge<I: Isa>(&mut self, other: &State<'_, R>) {
        let head_dim = self.o.len() / R;
        for r in 0..R {
            if other.d[r] == 0.0 {
                continue;
            }
            let m = if other.m[r] > self.m[r] {
                other.m[r]
            } else {
                self.m[r]
            };
            let (ours, theirs) = (exp::<I>(self.m[r] - m), exp::<I>(other.m[r] - m));
            self.m[r] = m;
            self.d[r] = I::mul_add(self.d[r], ours, other.d[r] * theirs);
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
            for o in &mut self.o[r * head_dim..(r + 1) * head_dim] {
                *o /= self.d[r];
            }
        }
    }
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
