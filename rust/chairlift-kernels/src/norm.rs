//! RMS normalisation (Zhang and Sennrich, 2019).

use crate::Element;
use crate::disjoint::Disjoint;
use crate::dispatch::{Kernel, dispatch};
use crate::error::{ArgumentError, expect_equal};
use crate::isa::Isa;
use crate::pool;
use crate::rows::{Rows, RowsMut};
use std::ops::Range;

/// Lanes of a partial sum, on every instruction set.
pub(crate) const LANES: usize = 16;

/// `out = x / sqrt(mean(x^2) + eps) * weight` for each row; one rounding at the end.
///
/// Shapes: `x`, `out` `[T, H]`, `weight` `[H]`.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn rms_norm<T: Element>(
    x: Rows<'_, T>,
    weight: &[T],
    eps: f32,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    expect_equal("weight", "the width of x,", x.width(), weight.len())?;
    expect_equal("out", "the width of x,", x.width(), out.width())?;
    expect_equal("out", "as many rows as x:", x.len(), out.len())?;
    let stride = out.stride();
    let out = Disjoint::new(out.into_slice());
    pool::split(x.len(), pool::grain(x.width()), |rows| {
        dispatch(RmsNorm {
            x,
            weight,
            eps,
            out,
            stride,
            rows,
        });
    });
    Ok(())
}

struct RmsNorm<'a, T> {
    x: Rows<'a, T>,
    weight: &'a [T],
    eps: f32,
    out: Disjoint<'a, T>,
    stride: usize,
    rows: Range<usize>,
}

impl<T: Element> Kernel for RmsNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            let start = row * self.stride;
            // SAFETY: rows do not overlap, and each belongs to one part.
            let out = unsafe { self.out.take(start..start + self.x.width()) };
            let x = self.x.row(row);
            let scale = inverse_rms::<I, T>(x, self.eps);
            for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = T::from_f32(x.to_f32() * scale * weight.to_f32());
            }
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
pub(crate) fn inverse_rms<I: Isa, T: Element>(x: &[T], eps: f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let number = chunk[lane].to_f32();
            sums[lane] = I::mul_add(number, number, sums[lane]);
        }
    }
    for (sum, number) in sums.iter_mut().zip(rest) {
        *sum = I::mul_add(number.to_f32(), number.to_f32(), *sum);
    }
    1.0 / (sum_lanes(sums) / x.len() as f32 + eps).sqrt()
}

/// Sum of lanes in a fixed order: halves onto halves.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
