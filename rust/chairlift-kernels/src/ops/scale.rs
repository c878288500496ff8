//! Sums and numbers with a factor: the residual stream, parts of a layer, the logits.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
        exp::{exp, tanh},
    },
    memory::{
        disjoint::Disjoint,
        pool,
        rows::{Rows, RowsMut},
    },
};
use std::ops::Range;

/// `x += multiplier * update`, rounded once.
///
/// Shapes: `x`, `update` `[T, H]`.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn add_scaled<T: Element>(
    x: RowsMut<'_, T>,
    update: Rows<'_, T>,
    multiplier: f32,
) -> Result<(), ArgumentError> {
    let (len, width, stride) = (x.len(), x.width(), x.stride());
    expect_equal("update", "the width of x,", width, update.width())?;
    expect_equal("update", "as many rows as x:", len, update.len())?;
    let x = Disjoint::new(x.into_slice());
    pool::split(len, pool::grain(width), |rows| {
        dispatch(AddScaled {
            x,
            stride,
            update,
            multiplier,
            rows,
        });
    });
    Ok(())
}

struct AddScaled<'a, T> {
    x: Disjoint<'a, T>,
    stride: usize,
    update: Rows<'a, T>,
    multiplier: f32,
    rows: Range<usize>,
}

impl<T: Element> Kernel for AddScaled<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            let start = row * self.stride;
            // SAFETY: rows do not overlap, and each belongs to one part.
            let x = unsafe { self.x.take(start..start + self.update.width()) };
            for (x, update) in x.iter_mut().zip(self.update.row(row)) {
                *x = T::from_f32(x.to_f32() + update.to_f32() * self.multiplier);
            }
        }
    }
}

/// `x /= 1 + e^-gate`, rounded once.
///
/// Shapes: `x` `[T, W]`, `gate` `[T, W]`, or `[T, 1]`: one for each row.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn gate_by_sigmoid<T: Element, G: Element>(
    x: RowsMut<'_, T>,
    gate: Rows<'_, G>,
) -> Result<(), ArgumentError> {
    let (len, width, stride) = (x.len(), x.width(), x.stride());
    if gate.width() != 1 {
        expect_equal("gate", "the width of x or 1,", width, gate.width())?;
    }
    expect_equal("gate", "as many rows as x:", len, gate.len())?;
    let x = Disjoint::new(x.into_slice());
    pool::split(len, pool::grain(width), |rows| {
        dispatch(GateBySigmoid {
            x,
            width,
            stride,
            gate,
            rows,
        });
    });
    Ok(())
}

struct GateBySigmoid<'a, T, G> {
    x: Disjoint<'a, T>,
    width: usize,
    stride: usize,
    gate: Rows<'a, G>,
    rows: Range<usize>,
}

impl<T: Element, G: Element> Kernel for GateBySigmoid<'_, T, G> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            let start = row * self.stride;
            // SAFETY: rows do not overlap, and each belongs to one part.
            let x = unsafe { self.x.take(start..start + self.width) };
            let gate = self.gate.row(row);
            if let [gate] = gate {
                let divisor = 1.0 + exp::<I>(-gate.to_f32());
                for x in x {
                    *x = T::from_f32(x.to_f32() / divisor);
                }
                continue;
            }
            for (x, gate) in x.iter_mut().zip(gate) {
                *x = T::from_f32(x.to_f32() / (1.0 + exp::<I>(-gate.to_f32())));
            }
        }
    }
}

/// `x = multiplier * x`, then `cap tanh(x / cap)` where there is a cap; rounded once.
///
/// Shapes: `x` `[T, W]`.
///
/// # Errors
/// If the cap is not positive.
pub fn scale<T: Element>(
    x: RowsMut<'_, T>,
    multiplier: f32,
    cap: Option<f32>,
) -> Result<(), ArgumentError> {
    if let Some(cap) = cap.filter(|cap| cap.is_nan() || *cap <= 0.0) {
        return Err(ArgumentError::new("soft_cap", "above 0", cap));
    }
    let (len, width, stride) = (x.len(), x.width(), x.stride());
    let x = Disjoint::new(x.into_slice());
    pool::split(len, pool::grain(width), |rows| {
        dispatch(Scale {
            x,
            width,
            stride,
            multiplier,
            cap,
            rows,
        });
    });
    Ok(())
}

struct Scale<'a, T> {
    x: Disjoint<'a, T>,
    width: usize,
    stride: usize,
    multiplier: f32,
    cap: Option<f32>,
    rows: Range<usize>,
}

impl<T: Element> Kernel for Scale<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            let start = row * self.stride;
            // SAFETY: rows do not overlap, and each belongs to one part.
            let x = unsafe { self.x.take(start..start + self.width) };
            let Some(cap) = self.cap else {
                for x in x {
                    *x = T::from_f32(x.to_f32() * self.multiplier);
                }
                continue;
            };
            for x in x {
                *x = T::from_f32(cap * tanh::<I>(x.to_f32() * self.multiplier / cap));
            }
        }
    }
}
