//! RMS normalization (Zhang and Sennrich, 2019).

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
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
    let normed = Normed::new(x.len(), x.width(), weight, eps, out)?;
    pool::split(x.len(), pool::grain(x.width()), |rows| {
        dispatch(RmsNorm { x, normed, rows });
    });
    Ok(())
}

/// `x += update`, rounded, then [`rms_norm`] of the sum: the residual stream is read once.
///
/// Shapes: `x`, `update`, `out` `[T, H]`, `weight` `[H]`.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn add_rms_norm<T: Element>(
    x: RowsMut<'_, T>,
    update: Rows<'_, T>,
    weight: &[T],
    eps: f32,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let (len, width, stride) = (x.len(), x.width(), x.stride());
    expect_equal("update", "the width of x,", width, update.width())?;
    expect_equal("update", "as many rows as x:", len, update.len())?;
    let normed = Normed::new(len, width, weight, eps, out)?;
    let x = Disjoint::new(x.into_slice());
    pool::split(len, pool::grain(width), |rows| {
        dispatch(AddRmsNorm {
            x,
            stride,
            update,
            normed,
            rows,
        });
    });
    Ok(())
}

/// Where rows go when they are normed.
#[derive(Clone, Copy)]
struct Normed<'a, T> {
    weight: &'a [T],
    eps: f32,
    out: Disjoint<'a, T>,
    stride: usize,
}

impl<'a, T: Element> Normed<'a, T> {
    /// For `len` rows of `width`.
    fn new(
        len: usize,
        width: usize,
        weight: &'a [T],
        eps: f32,
        out: RowsMut<'a, T>,
    ) -> Result<Self, ArgumentError> {
        expect_equal("weight", "the width of x,", width, weight.len())?;
        expect_equal("out", "the width of x,", width, out.width())?;
        expect_equal("out", "as many rows as x:", len, out.len())?;
        Ok(Self {
            weight,
            eps,
            stride: out.stride(),
            out: Disjoint::new(out.into_slice()),
        })
    }

    /// Norms row `row`, which is `x`.
    ///
    /// # Safety
    /// No other thread norms this row.
    #[inline(always)]
    unsafe fn write<I: Isa>(&self, row: usize, x: &[T]) {
        let start = row * self.stride;
        // SAFETY: rows do not overlap, and the caller keeps them apart.
        let out = unsafe { self.out.take(start..start + x.len()) };
        let scale = inverse_rms::<I, T>(x, self.eps);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
            *out = T::from_f32(x.to_f32() * scale * weight.to_f32());
        }
    }
}

struct RmsNorm<'a, T> {
    x: Rows<'a, T>,
    normed: Normed<'a, T>,
    rows: Range<usize>,
}

impl<T: Element> Kernel for RmsNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            // SAFETY: each row belongs to one part.
            unsafe { self.normed.write::<I>(row, self.x.row(row)) };
        }
    }
}

struct AddRmsNorm<'a, T> {
    x: Disjoint<'a, T>,
    stride: usize,
    update: Rows<'a, T>,
    normed: Normed<'a, T>,
    rows: Range<usize>,
}

impl<T: Element> Kernel for AddRmsNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            let start = row * self.stride;
            // SAFETY: rows do not overlap, and each belongs to one part.
            let x = unsafe { self.x.take(start..start + self.update.width()) };
            for (x, update) in x.iter_mut().zip(self.update.row(row)) {
                *x = T::from_f32(x.to_f32() + update.to_f32());
            }
            // SAFETY: each row belongs to one part.
            unsafe { self.normed.write::<I>(row, x) };
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
