//! The gated activation of gpt-oss, whose gates and ups are clamped.

use crate::{
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
        exp::exp,
    },
    memory::rows::Rows,
};

/// `(up + 1) gate / (1 + e^(-alpha gate))`, where gates are at most `limit`, and ups between `-limit` and it.
#[derive(Clone, Copy, Debug)]
pub struct Clamped {
    /// Positive.
    pub limit: f32,
    /// Of the exponent.
    pub alpha: f32,
}

impl Clamped {
    /// Writes what a row of `gate_up` gives, which holds the gates, then the ups.
    ///
    /// Shapes: `gate_up` `[T, 2 I]`, `out` `[T, I]`.
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn activate_mul(
        self,
        gate_up: Rows<'_, f32>,
        out: &mut [f32],
    ) -> Result<(), ArgumentError> {
        let expected = gate_up.len() * gate_up.width();
        expect_equal(
            "gate_up",
            "twice the numbers of out,",
            2 * out.len(),
            expected,
        )?;
        dispatch(Run {
            clamped: self,
            gate_up,
            out,
        });
        Ok(())
    }
}

struct Run<'a> {
    clamped: Clamped,
    gate_up: Rows<'a, f32>,
    out: &'a mut [f32],
}

impl Kernel for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Clamped { limit, alpha } = self.clamped;
        let width = self.gate_up.width() / 2;
        for row in 0..self.gate_up.len() {
            let (gates, ups) = self.gate_up.row(row).split_at(width);
            let out = &mut self.out[row * width..(row + 1) * width];
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
        let clamped = Clamped {
            limit: 7.0,
            alpha: 1.702,
        };
        clamped
            .activate_mul(Rows::contiguous(&row, 8), &mut out)
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
