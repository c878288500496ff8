//! A gate, and a norm of groups of numbers behind it, as Mamba-2 has them.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
        exp::exp,
    },
    memory::rows::{IterMut, Rows, RowsMut},
    ops::norm::inverse_rms,
};

/// `x = y / sqrt(mean(y^2) + eps) * weight` with `y = x silu(gate)`, the mean over each group of `group_size` numbers of
/// a row; `x = y` without a weight. One rounding at the end.
///
/// Shapes: `x`, `gate` `[T, W]`, `weight` `[W]`.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn gated_rms_norm<T: Element>(
    x: RowsMut<'_, T>,
    gate: Rows<'_, T>,
    weight: Option<&[f32]>,
    group_size: usize,
    eps: f32,
) -> Result<(), ArgumentError> {
    let (len, width) = (x.len(), x.width());
    expect_equal("gate", "the width of x,", width, gate.width())?;
    expect_equal("gate", "as many rows as x:", len, gate.len())?;
    if let Some(weight) = weight {
        expect_equal("weight", "the width of x,", width, weight.len())?;
    }
    if group_size == 0 || !width.is_multiple_of(group_size) {
        let expected = format_args!("a divisor of {width}");
        return Err(ArgumentError::new("group_size", expected, group_size));
    }
    x.par_rows(|rows| {
        dispatch(GatedNorm {
            rows,
            gate,
            weight,
            group_size,
            eps,
        });
    });
    Ok(())
}

struct GatedNorm<'a, T> {
    rows: IterMut<'a, T>,
    gate: Rows<'a, T>,
    weight: Option<&'a [f32]>,
    group_size: usize,
    eps: f32,
}

impl<T: Element> Kernel for GatedNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let mut gated = vec![0.0; self.group_size.min(self.gate.width())];
        for (row, x) in self.rows {
            let groups = x.chunks_exact_mut(self.group_size);
            let gates = self.gate.row(row).chunks_exact(self.group_size);
            for (group, (x, gates)) in groups.zip(gates).enumerate() {
                for ((y, x), gate) in gated.iter_mut().zip(&*x).zip(gates) {
                    let gate = gate.to_f32();
                    *y = x.to_f32() * (gate / (1.0 + exp::<I>(-gate)));
                }
                let Some(weight) = self.weight else {
                    for (x, y) in x.iter_mut().zip(&gated) {
                        *x = T::from_f32(*y);
                    }
                    continue;
                };
                let weights = &weight[group * self.group_size..][..self.group_size];
                let scale = inverse_rms::<I, f32>(&gated, self.eps);
                for ((x, y), weight) in x.iter_mut().zip(&gated).zip(weights) {
                    *x = T::from_f32(y * scale * weight);
                }
            }
        }
    }
}
