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

use crate::dispatch::Isa;
use crate::element::Packed;
use crate::exp::{exp, exp_lanes};
use crate::layout::BLOCK_SIZE;
use crate::norm::sum_lanes;
use crate::tile::{Lines, accumulate};
use std::ops::Range;

/// Coordinates that are summed at a time, in registers.
const STRIP: usize = 16;

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

    /// Adds a block: its scores, its values, and which of its tokens each query sees.
    ///
    /// Nothing of a token outside `visible` is used: a slot that no one wrote may hold NaN, and a
    /// weight of zero would not silence it.
    #[inline(always)]
    pub fn update<I: Isa, P: Packed>(
        &mut self,
        scores: &[[f32; BLOCK_SIZE]; R],
        values: &[P],
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
            for (token, score) in row.iter_mut().enumerate() {
                if !visible[r].contains(&token) {
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
        self.add_values::<I, P>(&factors, &weights, values, visible);
    }

    /// `o = o * factor + weights * values`, a strip of coordinates at a time.
    #[inline(always)]
    fn add_values<I: Isa, P: Packed>(
        &mut self,
        factors: &[f32; R],
        weights: &[[f32; R]; BLOCK_SIZE],
        values: &[P],
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
        for start in (0..head_dim).step_by(STRIP) {
            let mut acc = [[0.0; STRIP]; R];
            for r in 0..R {
                let o = strip(&self.o[r * head_dim + start..]);
                for c in 0..STRIP {
                    acc[r][c] = o[c] * factors[r];
                }
            }
            let lines = Lines::new(&values[start..], head_dim);
            let acc = accumulate::<I, P, R, STRIP>(acc, &weights[..shared], lines);
            for r in 0..R {
                self.o[r * head_dim + start..][..STRIP].copy_from_slice(&acc[r]);
            }
        }
        for (r, seen) in visible.iter().enumerate() {
            for token in shared.max(seen.start)..seen.end {
                let line = &values[token / P::DEPTH * head_dim..];
                for start in (0..head_dim).step_by(STRIP) {
                    let value = P::widen(strip(&line[start..]), token % P::DEPTH);
                    let o = &mut self.o[r * head_dim + start..][..STRIP];
                    for c in 0..STRIP {
                        o[c] = I::mul_add(weights[token][r], value[c], o[c]);
                    }
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

/// The first strip of a slice.
#[inline(always)]
fn strip<U>(units: &[U]) -> &[U; STRIP] {
    units.first_chunk().expect("a strip of the head")
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
