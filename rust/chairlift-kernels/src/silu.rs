//! The gated activation of Llama's feed-forward layer.

use crate::Element;
use crate::disjoint::Disjoint;
use crate::dispatch::{Kernel, dispatch};
use crate::error::{ArgumentError, expect_equal};
use crate::exp::exp;
use crate::isa::Isa;
use crate::pool;
use crate::rows::{Rows, RowsMut};
use std::ops::Range;

/// `out = gate / (1 + e^-gate) * up`, where a row of `gate_up` holds the gates, then the ups.
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

struct SiluMul<'a, T> {
    gate_up: Rows<'a, T>,
    out: Disjoint<'a, T>,
    width: usize,
    stride: usize,
    rows: Range<usize>,
}

impl<T: Element> Kernel for SiluMul<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            let start = row * self.stride;
            // SAFETY: rows do not overlap, and each belongs to one part.
            let out = unsafe { self.out.take(start..start + self.width) };
            let (gate, up) = self.gate_up.row(row).split_at(self.width);
            for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                let gate = gate.to_f32();
                *out = T::from_f32(gate / (1.0 + exp::<I>(-gate)) * up.to_f32());
            }
        }
    }
}
