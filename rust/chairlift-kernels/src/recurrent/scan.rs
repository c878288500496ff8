//! The selective scan of Mamba-2 (Dao and Gu, 2024): a linear attention whose state decays by what each token says.
//!
//! ```text
//! step = softplus(dt + dt_bias)
//! S = e^(-rate step) S + (step B) x^T                     state [N, P] of a head
//! y = S^T C + skip x
//! ```
//!
//! A head of a row is computed by one thread, some tokens at a time, as in `delta.rs`: each column of the state is one
//! chain of operations in the order of the tokens, and of the places of the state within a token.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
        exp::exp,
    },
    memory::{
        disjoint::Disjoint,
        pool,
        rows::{Rows, RowsMut},
    },
    recurrent::{RecurrentRows, Sequence, delta::softplus},
};
use std::ops::Range;

/// Numbers of a head are a multiple of this: the widest register.
pub const HEAD_STEP: usize = 16;

/// Tokens that are computed at a time.
const TOKENS: usize = 16;

/// Sizes. A group has one `B` and one `C` for `num_heads / num_groups` heads in a row.
#[derive(Clone, Copy, Debug)]
pub struct ScanSizes {
    pub num_heads: usize,
    /// P.
    pub head_dim: usize,
    pub num_groups: usize,
    /// N.
    pub state_dim: usize,
}

impl ScanSizes {
    fn check(self) -> Result<Self, ArgumentError> {
        if self.num_groups == 0 || !self.num_heads.is_multiple_of(self.num_groups) {
            let expected = format_args!("a divisor of {}", self.num_heads);
            return Err(ArgumentError::new("num_groups", expected, self.num_groups));
        }
        if self.state_dim == 0 {
            return Err(ArgumentError::new("state_dim", "at least 1", 0));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(HEAD_STEP) {
            let expected = format_args!("a multiple of {HEAD_STEP}");
            return Err(ArgumentError::new("head_dim", expected, self.head_dim));
        }
        Ok(self)
    }

    /// Numbers of all heads of a token.
    fn inner(self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Numbers of the state of a head.
    fn state(self) -> usize {
        self.state_dim * self.head_dim
    }
}

/// What the heads compute of the tokens of a step.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a, T> {
    pub sizes: ScanSizes,
    /// `[T, inner + 2 num_groups state_dim]`: x of all heads, then B and C of all groups.
    pub xbc: Rows<'a, T>,
    /// `[T, num_heads]`.
    pub dt: Rows<'a, T>,
    /// `[num_heads]` each.
    pub rate: &'a [f32],
    pub dt_bias: &'a [f32],
    pub skip: &'a [f32],
}

/// Writes the outputs of the tokens of a step, and moves the states of their rows on.
///
/// Shapes: `state` `[states, num_heads, state_dim, head_dim]`, `out` `[T, inner]`.
///
/// # Errors
/// If the arguments do not fit each other.
pub fn selective_scan<T: Element>(
    scan: Scan<'_, T>,
    sequences: RecurrentRows<'_>,
    state: &mut [f32],
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let sizes = scan.sizes.check()?;
    let num_tokens = scan.xbc.len();
    let width = sizes.inner() + 2 * sizes.num_groups * sizes.state_dim;
    expect_equal("xbc", "a width of", width, scan.xbc.width())?;
    expect_equal("dt", "a width of", sizes.num_heads, scan.dt.width())?;
    expect_equal("dt", "as many tokens as xbc:", num_tokens, scan.dt.len())?;
    for (name, numbers) in [
        ("rate", scan.rate),
        ("dt_bias", scan.dt_bias),
        ("skip", scan.skip),
    ] {
        expect_equal(name, "one per head:", sizes.num_heads, numbers.len())?;
    }
    expect_equal("out", "a width of", sizes.inner(), out.width())?;
    expect_equal("out", "as many tokens as xbc:", num_tokens, out.len())?;
    let row_len = sizes.num_heads * sizes.state();
    let num_states = state.len().checked_div(row_len).unwrap_or(0);
    expect_equal("state", "whole rows of", num_states * row_len, state.len())?;
    let sequences = sequences.check(num_tokens, num_states)?;
    let stride = out.stride();
    let (state, out) = (Disjoint::new(state), Disjoint::new(out.into_slice()));
    // Heads and not rows are shared out: a prompt among decodes is work for all threads.
    let grain = pool::grain(num_tokens * sizes.state());
    pool::split(sizes.num_heads, grain, |heads_of_share| {
        dispatch(ScanPart {
            scan,
            sequences: &sequences,
            state,
            out,
            stride,
            heads_of_share,
        });
    });
    Ok(())
}

struct ScanPart<'a, T> {
    scan: Scan<'a, T>,
    sequences: &'a [Sequence],
    state: Disjoint<'a, f32>,
    out: Disjoint<'a, T>,
    /// Elements from a row of `out` to the next.
    stride: usize,
    /// Heads.
    heads_of_share: Range<usize>,
}

/// The inputs of a few tokens of a head, and what the state gives for them.
struct ScanTokens {
    /// `[TOKENS, state_dim]`: `step B`.
    keys: Vec<f32>,
    /// `[TOKENS, state_dim]`: `C`.
    queries: Vec<f32>,
    /// `[TOKENS, head_dim]`: `x`.
    values: Vec<f32>,
    /// `[TOKENS, head_dim]`.
    outputs: Vec<f32>,
    /// What remains of the state before each token.
    decays: [f32; TOKENS],
}

impl<T: Element> Kernel for ScanPart<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let sizes = self.scan.sizes;
        let mut tokens = ScanTokens {
            keys: vec![0.0; TOKENS * sizes.state_dim],
            queries: vec![0.0; TOKENS * sizes.state_dim],
            values: vec![0.0; TOKENS * sizes.head_dim],
            outputs: vec![0.0; TOKENS * sizes.head_dim],
            decays: [0.0; TOKENS],
        };
        let len = sizes.state();
        for head in self.heads_of_share.clone() {
            for sequence in self.sequences {
                let start = (sequence.row * sizes.num_heads + head) * len;
                // SAFETY: a head of a row belongs to one part, which takes one at a time; a row is there once.
                let state = unsafe { self.state.take(start..start + len) };
                if sequence.is_new {
                    state.fill(0.0);
                }
                for first in sequence.tokens.clone().step_by(TOKENS) {
                    let some = first..(first + TOKENS).min(sequence.tokens.end);
                    self.read::<I>(head, some.clone(), &mut tokens);
                    let skip = self.scan.skip[head];
                    for start in (0..sizes.head_dim).step_by(I::LANES) {
                        column::<I>(state, sizes, start, skip, some.len(), &mut tokens);
                    }
                    self.write(head, some, &tokens);
                }
            }
        }
    }
}

impl<T: Element> ScanPart<'_, T> {
    /// Widens the inputs of some tokens.
    #[inline(always)]
    fn read<I: Isa>(&self, head: usize, some: Range<usize>, tokens: &mut ScanTokens) {
        let Scan {
            sizes,
            xbc,
            dt,
            rate,
            dt_bias,
            ..
        } = self.scan;
        let (state_dim, head_dim) = (sizes.state_dim, sizes.head_dim);
        let group = head / (sizes.num_heads / sizes.num_groups);
        for (index, token) in some.enumerate() {
            let step = softplus::<I>(dt.row(token)[head].to_f32() + dt_bias[head]);
            tokens.decays[index] = exp::<I>(-rate[head] * step);
            let numbers = xbc.row(token);
            let (x, rest) = numbers.split_at(sizes.inner());
            let (b, c) = rest.split_at(sizes.num_groups * state_dim);
            let b = &b[group * state_dim..][..state_dim];
            for (out, number) in tokens.keys[index * state_dim..].iter_mut().zip(b) {
                *out = step * number.to_f32();
            }
            let c = &c[group * state_dim..][..state_dim];
            for (out, number) in tokens.queries[index * state_dim..].iter_mut().zip(c) {
                *out = number.to_f32();
            }
            let x = &x[head * head_dim..][..head_dim];
            for (out, number) in tokens.values[index * head_dim..].iter_mut().zip(x) {
                *out = number.to_f32();
            }
        }
    }

    #[inline(always)]
    fn write(&self, head: usize, some: Range<usize>, tokens: &ScanTokens) {
        let head_dim = self.scan.sizes.head_dim;
        for (token, numbers) in some.zip(tokens.outputs.chunks_exact(head_dim)) {
            let start = token * self.stride + head * head_dim;
            // SAFETY: a head of a token belongs to one part, which takes one at a time.
            let out = unsafe { self.out.take(start..start + head_dim) };
            for (out, number) in out.iter_mut().zip(numbers) {
                *out = T::from_f32(*number);
            }
        }
    }
}

/// Moves one register of columns of a state on by some tokens.
#[inline(always)]
fn column<I: Isa>(
    state: &mut [f32],
    sizes: ScanSizes,
    start: usize,
    skip: f32,
    num_tokens: usize,
    tokens: &mut ScanTokens,
) {
    let (state_dim, head_dim) = (sizes.state_dim, sizes.head_dim);
    for token in 0..num_tokens {
        let key = &tokens.keys[token * state_dim..][..state_dim];
        let query = &tokens.queries[token * state_dim..][..state_dim];
        let decay = I::splat(tokens.decays[token]);
        let place = token * head_dim + start;
        let value = I::load(&tokens.values[place..]);
        let mut output = I::splat(0.0);
        for ((row, &key), &query) in state.chunks_exact_mut(head_dim).zip(key).zip(query) {
            let row = &mut row[start..];
            let old = I::mul_lanes(I::load(row), decay);
            let new = I::mul_add_lanes(I::splat(key), value, old);
            I::store(new, row);
            output = I::mul_add_lanes(new, I::splat(query), output);
        }
        let output = I::mul_add_lanes(value, I::splat(skip), output);
        I::store(output, &mut tokens.outputs[place..]);
    }
}
