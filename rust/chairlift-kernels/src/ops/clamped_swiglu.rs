//! The gated activation of gpt-oss, whose gates and ups are clamped.

use crate::{
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
        exp::exp,
    },
    memory::rows::{IterMut, Rows, RowsMut},
};

/// `(up + 1) gate / (1 + e^(-alpha gate))`, where gates are at most `limit`, and ups between `-limit` and it.
#[derive(Clone, Copy, Debug)]
pub struct ClampedSwiglu {
    /// Positive.
    pub limit: f32,
    /// Factor of the exponent.
    pub alpha: f32,
}

impl ClampedSwiglu {
    /// Writes what a row of `gate_up` gives, which holds the gates, then the ups.
    ///
    /// Shapes: `gate_up` `[T, 2 I]`, `out` `[T, I]`.
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn activate_mul(
        self,
        gate_up: Rows<'_, f32>,
        out: RowsMut<'_, f32>,
    ) -> Result<(), ArgumentError> {
        let width = out.width();
        expect_equal(
            "gate_up",
            "twice the width of out,",
            2 * width,
            gate_up.width(),
        )?;
        expect_equal("out", "as many rows as gate_up:", gate_up.len(), out.len())?;
        let (gates, ups) = gate_up.split_at(width);
        out.par_rows(|rows| {
            dispatch(ClampRows {
                clamped_swiglu: self,
                gates,
                ups,
                rows,
            });
        });
        Ok(())
    }
}

struct ClampRows<'a> {
    clamped_swiglu: ClampedSwiglu,
    gates: Rows<'a, f32>,
    ups: Rows<'a, f32>,
    rows: IterMut<'a, f32>,
}

impl Kernel for ClampRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let ClampedSwiglu { limit, alpha } = self.clamped_swiglu;
        for (row, out) in self.rows {
            let (gates, ups) = (self.gates.row(row), self.ups.row(row));
            for ((out, &gate), &up) in out.iter_mut().zip(gates).zip(ups) {
                // Written as selects that keep NaN.
                let gate = if gate > limit { limit } else { gate };
                let up = if up > limit { limit } else { up };
                let up = if up < -limit { -limit } else { up };
                *out = (up + 1.0) * (gate / (1.0 + exp::<I>(-alpha * gate)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_and_ups_are_clamped() {
        let gates = [0.5_f32, 9.0, -9.0, f32::NAN];
        let ups = [0.25_f32, -8.0, 8.0, 0.0];
        let row: Vec<f32> = gates.iter().chain(&ups).copied().collect();
        let mut out = [0.0; 4];
        let clamped_swiglu = ClampedSwiglu {
            limit: 7.0,
            alpha: 1.702,
        };
        clamped_swiglu
            .activate_mul(Rows::contiguous(&row, 8), RowsMut::contiguous(&mut out, 4))
            .expect("it fits");
        let exact = |gate: f64, up: f64| (up + 1.0) * gate / (1.0 + (-1.702 * gate).exp());
        for (got, expected) in
            out.iter()
                .zip([exact(0.5, 0.25), exact(7.0, -7.0), exact(-9.0, 7.0)])
        {
            assert!(
                (f64::from(*got) - expected).abs() < 1e-4,
                "{got} {expected}"
            );
        }
        assert!(out[3].is_nan());
    }
}
