//! The gated delta rule (Yang et al., 2024): a linear attention whose state forgets, and corrects what it recalls.
//!
//! ```text
//! S = e^(-rate softplus(a + dt_bias)) S                  decay of the state [dk, dv] of a head
//! S = S + k (most sigmoid(b) (v - S^T k))^T               what the key recalls becomes nearer to the value
//! out = norm(S^T q) silu(z)                               with q and k of length 1, q / sqrt(dk)
//! ```
//!
//! A head of a row is computed by one thread, some tokens at a time: for these a few columns of the state stay in its
//! nearest cache. Each column is one chain of operations in the order of the tokens, and of the keys within a token.

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
    ops::norm::inverse_rms,
    recurrent::{RecurrentRows, Sequence},
};
use std::ops::Range;

/// Values of a head are a multiple of this: the widest register.
pub const VALUE_STEP: usize = 16;

/// Tokens that are computed at a time.
const TOKENS: usize = 16;

/// Added to the square of the length of a key or query.
const LENGTH_EPS: f32 = 1e-6;

/// Sizes of the heads. A key head serves `num_value_heads / num_key_heads` value heads.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub num_key_heads: usize,
    pub num_value_heads: usize,
    /// Numbers of a key.
    pub key_dim: usize,
    /// Numbers of a value.
    pub value_dim: usize,
    /// Value head n has key head `n % num_key_heads`; else neighbours have the same one.
    pub interleaved_heads: bool,
}

impl Heads {
    fn check(self) -> Result<Self, ArgumentError> {
        if self.num_key_heads == 0 || !self.num_value_heads.is_multiple_of(self.num_key_heads) {
            let expected = format_args!("a divisor of {}", self.num_value_heads);
            return Err(ArgumentError::new(
                "num_key_heads",
                expected,
                self.num_key_heads,
            ));
        }
        if self.key_dim == 0 {
            return Err(ArgumentError::new("key_dim", "at least 1", 0));
        }
        if self.value_dim == 0 || !self.value_dim.is_multiple_of(VALUE_STEP) {
            let expected = format_args!("a multiple of {VALUE_STEP}");
            return Err(ArgumentError::new("value_dim", expected, self.value_dim));
        }
        Ok(self)
    }

    /// Numbers of all queries, and of all keys, of a token.
    fn keys(self) -> usize {
        self.num_key_heads * self.key_dim
    }

    /// Numbers of all values of a token.
    fn values(self) -> usize {
        self.num_value_heads * self.value_dim
    }

    /// The key head of a value head.
    #[inline(always)]
    fn key_head(self, head: usize) -> usize {
        if self.interleaved_heads {
            head % self.num_key_heads
        } else {
            head / (self.num_value_heads / self.num_key_heads)
        }
    }

    /// Numbers of the state of a head.
    fn state(self) -> usize {
        self.key_dim * self.value_dim
    }
}

/// What the heads compute of the tokens of a step.
#[derive(Clone, Copy, Debug)]
pub struct Delta<'a, T> {
    pub heads: Heads,
    /// `[T, keys + keys + values]`: queries, keys and values of all heads.
    pub qkv: Rows<'a, T>,
    /// `[T, values]`: gates of the outputs.
    pub gate: Rows<'a, T>,
    /// `[T, 2 num_value_heads]`: `b` of all heads, then `a`.
    pub beta_alpha: Rows<'a, T>,
    /// `[num_value_heads]`.
    pub rate: &'a [f32],
    /// `[num_value_heads]`.
    pub dt_bias: &'a [f32],
    /// `[value_dim]`: the weight of the norm of an output.
    pub norm_weight: &'a [f32],
    /// The epsilon of that norm.
    pub eps: f32,
    /// The largest share of a correction that is made: 1, or up to 2 for eigenvalues below 0.
    pub max_beta: f32,
}

/// Writes the outputs of the tokens of a step, and moves the states of their rows on.
///
/// Shapes: `state` `[states, num_value_heads, key_dim, value_dim]`, `out` `[T, values]`.
///
/// # Errors
/// If the arguments do not fit each other.
pub fn gated_delta<T: Element>(
    delta: Delta<'_, T>,
    sequences: RecurrentRows<'_>,
    state: &mut [f32],
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let heads = delta.heads.check()?;
    let num_tokens = delta.qkv.len();
    for (name, width, got) in [
        ("qkv", 2 * heads.keys() + heads.values(), delta.qkv),
        ("gate", heads.values(), delta.gate),
        ("beta_alpha", 2 * heads.num_value_heads, delta.beta_alpha),
    ] {
        expect_equal(name, "a width of", width, got.width())?;
        expect_equal(name, "as many tokens as qkv:", num_tokens, got.len())?;
    }
    expect_equal(
        "rate",
        "one per head:",
        heads.num_value_heads,
        delta.rate.len(),
    )?;
    expect_equal(
        "dt_bias",
        "one per head:",
        heads.num_value_heads,
        delta.dt_bias.len(),
    )?;
    expect_equal(
        "norm_weight",
        "one per value:",
        heads.value_dim,
        delta.norm_weight.len(),
    )?;
    expect_equal("out", "a width of", heads.values(), out.width())?;
    expect_equal("out", "as many tokens as qkv:", num_tokens, out.len())?;
    let row_len = heads.num_value_heads * heads.state();
    let num_states = state.len().checked_div(row_len).unwrap_or(0);
    expect_equal("state", "whole rows of", num_states * row_len, state.len())?;
    let sequences = sequences.check(num_tokens, num_states)?;
    let stride = out.stride();
    let (state, out) = (Disjoint::new(state), Disjoint::new(out.into_slice()));
    // Heads and not rows are shared out: a prompt among decodes is work for all threads.
    let grain = pool::grain(num_tokens * heads.state());
    pool::split(heads.num_value_heads, grain, |heads_of_share| {
        dispatch(DeltaPart {
            delta,
            sequences: &sequences,
            state,
            out,
            stride,
            heads_of_share,
        });
    });
    Ok(())
}

struct DeltaPart<'a, T> {
    delta: Delta<'a, T>,
    sequences: &'a [Sequence],
    state: Disjoint<'a, f32>,
    out: Disjoint<'a, T>,
    /// Elements from a row of `out` to the next.
    stride: usize,
    /// Value heads.
    heads_of_share: Range<usize>,
}

/// The inputs of a few tokens of a head, and what the state gives for them.
struct DeltaTokens {
    /// `[TOKENS, key_dim]`.
    queries: Vec<f32>,
    /// `[TOKENS, key_dim]`.
    keys: Vec<f32>,
    /// `[TOKENS, value_dim]`.
    values: Vec<f32>,
    /// `[TOKENS, value_dim]`.
    outputs: Vec<f32>,
    /// What remains of the state before each token.
    decays: [f32; TOKENS],
    /// How much of a correction is made.
    shares: [f32; TOKENS],
}

impl<T: Element> Kernel for DeltaPart<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Heads {
            num_value_heads,
            key_dim,
            value_dim,
            ..
        } = self.delta.heads;
        let mut tokens = DeltaTokens {
            queries: vec![0.0; TOKENS * key_dim],
            keys: vec![0.0; TOKENS * key_dim],
            values: vec![0.0; TOKENS * value_dim],
            outputs: vec![0.0; TOKENS * value_dim],
            decays: [0.0; TOKENS],
            shares: [0.0; TOKENS],
        };
        let len = self.delta.heads.state();
        for head in self.heads_of_share.clone() {
            for sequence in self.sequences {
                let start = (sequence.row * num_value_heads + head) * len;
                // SAFETY: a head of a row belongs to one part, which takes one at a time; a row is there once.
                let state = unsafe { self.state.take(start..start + len) };
                if sequence.is_new {
                    state.fill(0.0);
                }
                for first in sequence.tokens.clone().step_by(TOKENS) {
                    let some = first..(first + TOKENS).min(sequence.tokens.end);
                    self.read::<I>(head, some.clone(), &mut tokens);
                    advance::<I>(state, value_dim, some.len(), &mut tokens);
                    self.write::<I>(head, some, &mut tokens);
                }
            }
        }
    }
}

impl<T: Element> DeltaPart<'_, T> {
    /// Widens the inputs of some tokens, and gives queries and keys their length.
    #[inline(always)]
    fn read<I: Isa>(&self, head: usize, some: Range<usize>, tokens: &mut DeltaTokens) {
        let Delta {
            heads,
            qkv,
            beta_alpha,
            rate,
            dt_bias,
            max_beta,
            ..
        } = self.delta;
        let (key_dim, value_dim) = (heads.key_dim, heads.value_dim);
        let key_head = heads.key_head(head);
        let root = (key_dim as f32).sqrt();
        for (index, token) in some.enumerate() {
            let numbers = qkv.row(token);
            let query = &numbers[key_head * key_dim..][..key_dim];
            let key = &numbers[heads.keys() + key_head * key_dim..][..key_dim];
            let value = &numbers[2 * heads.keys() + head * value_dim..][..value_dim];
            // 1 / length, of which a mean has a share of key_dim.
            let eps = LENGTH_EPS / key_dim as f32;
            let scale = inverse_rms::<I, T>(query, eps) / root / root;
            for (out, number) in tokens.queries[index * key_dim..].iter_mut().zip(query) {
                *out = number.to_f32() * scale;
            }
            let scale = inverse_rms::<I, T>(key, eps) / root;
            for (out, number) in tokens.keys[index * key_dim..].iter_mut().zip(key) {
                *out = number.to_f32() * scale;
            }
            for (out, number) in tokens.values[index * value_dim..].iter_mut().zip(value) {
                *out = number.to_f32();
            }
            let (b, a) = beta_alpha.row(token).split_at(heads.num_value_heads);
            let step = softplus::<I>(a[head].to_f32() + dt_bias[head]);
            tokens.decays[index] = exp::<I>(-rate[head] * step);
            tokens.shares[index] = max_beta / (1.0 + exp::<I>(-b[head].to_f32()));
        }
    }

    /// Norms what the state gave for some tokens, and writes it behind its gate.
    #[inline(always)]
    fn write<I: Isa>(&self, head: usize, some: Range<usize>, tokens: &mut DeltaTokens) {
        let Delta {
            heads,
            gate,
            norm_weight,
            eps,
            ..
        } = self.delta;
        let columns = head * heads.value_dim..(head + 1) * heads.value_dim;
        for (token, numbers) in some.zip(tokens.outputs.chunks_exact_mut(heads.value_dim)) {
            let scale = inverse_rms::<I, f32>(numbers, eps);
            let gates = &gate.row(token)[columns.clone()];
            for ((number, weight), gate) in numbers.iter_mut().zip(norm_weight).zip(gates) {
                let gate = gate.to_f32();
                *number = *number * scale * weight * (gate / (1.0 + exp::<I>(-gate)));
            }
            let start = token * self.stride;
            // SAFETY: a head of a token belongs to one part, which takes one at a time.
            let out = unsafe { self.out.take(start + columns.start..start + columns.end) };
            for (out, number) in out.iter_mut().zip(numbers) {
                *out = T::from_f32(*number);
            }
        }
    }
}

/// Moves a state on by some tokens.
#[inline(always)]
fn advance<I: Isa>(
    state: &mut [f32],
    value_dim: usize,
    num_tokens: usize,
    tokens: &mut DeltaTokens,
) {
    let mut start = 0;
    while start < value_dim {
        let left = (value_dim - start) / I::LANES;
        if left >= 4 {
            columns::<I, 4>(state, value_dim, start, num_tokens, tokens);
            start += 4 * I::LANES;
        } else {
            columns::<I, 1>(state, value_dim, start, num_tokens, tokens);
            start += I::LANES;
        }
    }
}

/// Moves `N` registers of columns of a state on, from column `start`.
#[inline(always)]
fn columns<I: Isa, const N: usize>(
    state: &mut [f32],
    value_dim: usize,
    start: usize,
    num_tokens: usize,
    tokens: &mut DeltaTokens,
) {
    let key_dim = state.len() / value_dim;
    for token in 0..num_tokens {
        let query = &tokens.queries[token * key_dim..][..key_dim];
        let key = &tokens.keys[token * key_dim..][..key_dim];
        let decay = I::splat(tokens.decays[token]);
        let share = I::splat(tokens.shares[token]);
        let zero = I::splat(0.0);
        let mut kv_mem = [zero; N];
        for (row, &key) in state.chunks_exact(value_dim).zip(key) {
            let key = I::splat(key);
            for (n, kv_mem) in kv_mem.iter_mut().enumerate() {
                let old = I::mul_lanes(I::load(&row[start + n * I::LANES..]), decay);
                *kv_mem = I::mul_add_lanes(old, key, *kv_mem);
            }
        }
        let mut corrections = [zero; N];
        for (n, correction) in corrections.iter_mut().enumerate() {
            let value = I::load(&tokens.values[token * value_dim + start + n * I::LANES..]);
            let missing = I::mul_add_lanes(kv_mem[n], I::splat(-1.0), value);
            *correction = I::mul_lanes(missing, share);
        }
        let mut outputs = [zero; N];
        for ((row, &key), &query) in state.chunks_exact_mut(value_dim).zip(key).zip(query) {
            let (key, query) = (I::splat(key), I::splat(query));
            for (n, output) in outputs.iter_mut().enumerate() {
                let place = &mut row[start + n * I::LANES..];
                let old = I::mul_lanes(I::load(place), decay);
                let new = I::mul_add_lanes(key, corrections[n], old);
                I::store(new, place);
                *output = I::mul_add_lanes(new, query, *output);
            }
        }
        for (n, output) in outputs.into_iter().enumerate() {
            let place = token * value_dim + start + n * I::LANES;
            I::store(output, &mut tokens.outputs[place..]);
        }
    }
}

/// `ln(1 + e^x)`; above 20 it is `x`, as in PyTorch.
#[inline(always)]
pub(super) fn softplus<I: Isa>(x: f32) -> f32 {
    if x > 20.0 { x } else { exp::<I>(x).ln_1p() }
}
