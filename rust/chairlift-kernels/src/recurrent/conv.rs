//! Causal convolution of each channel along the tokens of its row.
//!
//! The state holds the last `K - 1` inputs of each channel: `[states, K - 1, C]`, the oldest first.

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
    recurrent::{RecurrentRows, Sequence},
};
use std::ops::Range;

/// Inputs that an output sees at most, its own included.
pub const MAX_TAPS: usize = 8;

/// Channels that are computed at a time.
const WIDTH: usize = 64;

/// A convolution: `out[t] = sum_k weight[k] input[t - K + 1 + k] + bias`.
#[derive(Clone, Copy, Debug)]
pub struct Conv<'a, T> {
    /// `[T, C]`.
    pub x: Rows<'a, T>,
    /// `[T, C]` each: of the inputs, and of the outputs.
    pub gates: Option<(Rows<'a, T>, Rows<'a, T>)>,
    /// `[K, C]`, that of the oldest input first.
    pub weight: Rows<'a, f32>,
    /// `[C]`.
    pub bias: Option<&'a [f32]>,
    /// Whether an output `y` becomes `y / (1 + e^-y)`, before its gate.
    pub has_silu: bool,
}

/// Writes the convolution of the tokens of a step, and moves the states of their rows on.
///
/// Shapes: `state` `[states, K - 1, C]`, `out` `[T, C]`.
///
/// # Errors
/// If the arguments do not fit each other.
pub fn causal_conv<T: Element>(
    conv: Conv<'_, T>,
    sequences: RecurrentRows<'_>,
    state: &mut [f32],
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let (num_tokens, channels, taps) = (conv.x.len(), conv.x.width(), conv.weight.len());
    if !(2..=MAX_TAPS).contains(&taps) {
        let expected = format_args!("2 to {MAX_TAPS} inputs of an output");
        return Err(ArgumentError::new("weight", expected, taps));
    }
    expect_equal("weight", "a width of", channels, conv.weight.width())?;
    if let Some(bias) = conv.bias {
        expect_equal("bias", "one per channel:", channels, bias.len())?;
    }
    for (name, rows) in conv
        .gates
        .iter()
        .flat_map(|(input, output)| [("input_gate", input), ("output_gate", output)])
    {
        expect_equal(name, "a width of", channels, rows.width())?;
        expect_equal(name, "as many tokens as x:", num_tokens, rows.len())?;
    }
    expect_equal("out", "a width of", channels, out.width())?;
    expect_equal("out", "as many tokens as x:", num_tokens, out.len())?;
    let row_len = (taps - 1) * channels;
    let num_states = state.len().checked_div(row_len).unwrap_or(0);
    expect_equal("state", "whole rows of", num_states * row_len, state.len())?;
    let sequences = sequences.check(num_tokens, num_states)?;
    let stride = out.stride();
    let (state, out) = (Disjoint::new(state), Disjoint::new(out.into_slice()));
    pool::split(
        channels.div_ceil(WIDTH),
        pool::grain(num_tokens * WIDTH * taps),
        |blocks| {
            dispatch(ConvPart {
                conv,
                sequences: &sequences,
                state,
                out,
                stride,
                channels: blocks.start * WIDTH..(blocks.end * WIDTH).min(channels),
            });
        },
    );
    Ok(())
}

struct ConvPart<'a, T> {
    conv: Conv<'a, T>,
    sequences: &'a [Sequence],
    state: Disjoint<'a, f32>,
    out: Disjoint<'a, T>,
    /// Elements from a row of `out` to the next.
    stride: usize,
    channels: Range<usize>,
}

impl<T: Element> Kernel for ConvPart<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for sequence in self.sequences {
            for start in self.channels.clone().step_by(WIDTH) {
                self.block::<I>(sequence, start..(start + WIDTH).min(self.channels.end));
            }
        }
    }
}

impl<T: Element> ConvPart<'_, T> {
    /// All tokens of a sequence, in order, in some of the channels.
    #[inline(always)]
    fn block<I: Isa>(&self, sequence: &Sequence, channels: Range<usize>) {
        let Conv {
            x,
            gates,
            weight,
            bias,
            has_silu,
        } = self.conv;
        let (num_past, width, all) = (weight.len() - 1, channels.len(), x.width());
        // The inputs that the next output sees, the oldest first.
        let mut seen = [[0.0_f32; WIDTH]; MAX_TAPS];
        let place = |past: usize| {
            let start = (sequence.row * num_past + past) * all;
            start + channels.start..start + channels.end
        };
        if !sequence.is_new {
            for (past, seen) in seen[..num_past].iter_mut().enumerate() {
                // SAFETY: a channel of a row belongs to one part, which takes one place at a time.
                seen[..width].copy_from_slice(unsafe { self.state.take(place(past)) });
            }
        }
        for token in sequence.tokens.clone() {
            let inputs = &x.row(token)[channels.clone()];
            for (seen, input) in seen[num_past].iter_mut().zip(inputs) {
                *seen = input.to_f32();
            }
            if let Some((gate, _)) = gates {
                for (seen, gate) in seen[num_past]
                    .iter_mut()
                    .zip(&gate.row(token)[channels.clone()])
                {
                    *seen *= gate.to_f32();
                }
            }
            let mut sums = [0.0_f32; WIDTH];
            if let Some(bias) = bias {
                sums[..width].copy_from_slice(&bias[channels.clone()]);
            }
            for (tap, seen) in seen[..=num_past].iter().enumerate() {
                let weights = &weight.row(tap)[channels.clone()];
                for ((sum, seen), weight) in sums.iter_mut().zip(seen).zip(weights) {
                    *sum = I::mul_add(*seen, *weight, *sum);
                }
            }
            if has_silu {
                for sum in &mut sums {
                    *sum /= 1.0 + exp::<I>(-*sum);
                }
            }
            if let Some((_, gate)) = gates {
                for (sum, gate) in sums.iter_mut().zip(&gate.row(token)[channels.clone()]) {
                    *sum *= gate.to_f32();
                }
            }
            let start = token * self.stride;
            // SAFETY: a channel of a token belongs to one part, which takes one place at a time.
            let out = unsafe { self.out.take(start + channels.start..start + channels.end) };
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = T::from_f32(sum);
            }
            seen.copy_within(1..=num_past, 0);
        }
        for (past, seen) in seen[..num_past].iter().enumerate() {
            // SAFETY: as above.
            unsafe { self.state.take(place(past)) }.copy_from_slice(&seen[..width]);
        }
    }
}
