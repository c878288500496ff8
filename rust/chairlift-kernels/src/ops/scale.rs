//! Sums and numbers with a factor: the residual stream, parts of a layer, the logits.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
        exp::{exp, tanh},
    },
    memory::rows::{IterMut, Rows, RowsMut},
};

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
    let (len, width) = (x.len(), x.width());
    expect_equal("update", "the width of x,", width, update.width())?;
    expect_equal("update", "as many rows as x:", len, update.len())?;
    x.par_rows(|rows| {
        dispatch(AddScaled {
            rows,
            update,
            multiplier,
        });
    });
    Ok(())
}

struct AddScaled<'a, T> {
    rows: IterMut<'a, T>,
    update: Rows<'a, T>,
    multiplier: f32,
}

impl<T: Element> Kernel for AddScaled<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (row, x) in self.rows {
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
    let (len, width) = (x.len(), x.width());
    if gate.width() != 1 {
        expect_equal("gate", "the width of x or 1,", width, gate.width())?;
    }
    expect_equal("gate", "as many rows as x:", len, gate.len())?;
    x.par_rows(|rows| {
        dispatch(GateBySigmoid { rows, gate });
    });
    Ok(())
}

struct GateBySigmoid<'a, T, G> {
    rows: IterMut<'a, T>,
    gate: Rows<'a, G>,
}

impl<T: Element, G: Element> Kernel for GateBySigmoid<'_, T, G> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (row, x) in self.rows {
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
    x.par_rows(|rows| {
        dispatch(Scale {
            rows,
            multiplier,
            cap,
        });
    });
    Ok(())
}

struct Scale<'a, T> {
    rows: IterMut<'a, T>,
    multiplier: f32,
    cap: Option<f32>,
}

impl<T: Element> Kernel for Scale<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (_, x) in self.rows {
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
