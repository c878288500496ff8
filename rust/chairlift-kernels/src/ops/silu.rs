//! The gated activation of Llama's feed-forward layer.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::BLOCK,
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{
        disjoint::Disjoint,
        pool,
        rows::{Rows, RowsMut},
    },
};
use std::ops::Range;

/// `out = gate / (1 + e^-gate) * up`, where a row of `gate_up` holds the gates, then the ups.
///
/// The power is one of 2, whose exponent is rounded: where the gate is nearly closed, at -x, the relative error is
/// some x units in the last place.
///
/// Shapes: `gate_up` `[T, 2 I]`, `out` `[T, I]`.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn silu_mul<T: Element>(
    gate_up: Rows<'_, T>,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    expect_equal(
        "gate_up",
        "twice the width of out,",
        2 * out.width(),
        gate_up.width(),
    )?;
    expect_equal("out", "as many rows as gate_up:", gate_up.len(), out.len())?;
    let (width, stride) = (out.width(), out.stride());
    let out = Disjoint::new(out.into_slice());
    pool::split(gate_up.len(), pool::grain(width), |rows| {
        dispatch(SiluMul {
            gate_up,
            out,
            width,
            stride,
            rows,
        });
    });
    Ok(())
}

/// Below this a gate is closed; 2 to its power is finite still.
const LEAST: f32 = -87.0;

struct SiluMul<'a, T> {
    gate_up: Rows<'a, T>,
    out: Disjoint<'a, T>,
    width: usize,
    stride: usize,
    rows: Range<usize>,
}

impl<T: Element> Kernel for SiluMul<'_, T> {
    type Output = ();

    const USES_BF16: bool = true;

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            let start = row * self.stride;
            // SAFETY: rows do not overlap, and each belongs to one part.
            let out = unsafe { self.out.take(start..start + self.width) };
            let (gate, up) = self.gate_up.row(row).split_at(self.width);
            let (outs, rest) = out.as_chunks_mut();
            let (gates, last_gate) = gate.as_chunks();
            let (ups, last_up) = up.as_chunks();
            for ((out, gate), up) in outs.iter_mut().zip(gates).zip(ups) {
                block::<I, T>(gate, up, out);
            }
            if !rest.is_empty() {
                let (mut gate, mut up) = ([T::default(); BLOCK], [T::default(); BLOCK]);
                gate[..rest.len()].copy_from_slice(last_gate);
                up[..rest.len()].copy_from_slice(last_up);
                let mut out = [T::default(); BLOCK];
                block::<I, T>(&gate, &up, &mut out);
                rest.copy_from_slice(&out[..rest.len()]);
            }
        }
    }
}

/// As many numbers as a power is taken of at once.
#[inline(always)]
fn block<I: Isa, T: Element>(gate: &[T; BLOCK], up: &[T; BLOCK], out: &mut [T; BLOCK]) {
    let mut numbers = [0.0; BLOCK];
    for (number, gate) in numbers.iter_mut().zip(gate) {
        let gate = gate.to_f32();
        *number = if gate < LEAST { LEAST } else { gate } * -std::f32::consts::LOG2_E;
    }
    I::exp2_block(&mut numbers);
    for ((number, gate), up) in numbers.iter_mut().zip(gate).zip(up) {
        let gate = gate.to_f32();
        let divisor = if gate < LEAST {
            f32::INFINITY
        } else {
            1.0 + *number
        };
        *number = gate / divisor * up.to_f32();
    }
    T::round_block::<I>(&numbers, out);
}
