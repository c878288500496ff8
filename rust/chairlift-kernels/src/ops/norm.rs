//! Normalization of rows: RMS (Zhang and Sennrich, 2019) and layer (Ba, Kiros and Hinton, 2016).

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

/// `out = x / sqrt(mean(x^2) + eps) * (weight + offset)` for each row; one rounding at the end.
///
/// Shapes: `x`, `out` `[T, H]`; `weight` `[H]`, or `[D]` where each D numbers of a row are normed apart.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn rms_norm<T: Element>(
    x: Rows<'_, T>,
    weight: &[T],
    eps: f32,
    offset: f32,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let norm = Rms {
        weight,
        eps,
        offset,
    };
    norm_rows(x, norm, out)
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
    offset: f32,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let norm = Rms {
        weight,
        eps,
        offset,
    };
    add_and_norm_rows(x, update, norm, out)
}

/// `out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias` for each row; one rounding at the end.
///
/// Shapes: `x`, `out` `[T, H]`, `weight`, `bias` `[H]`; no bias is zero.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn layer_norm<T: Element>(
    x: Rows<'_, T>,
    weight: &[T],
    bias: Option<&[T]>,
    eps: f32,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    norm_rows(x, Layer { weight, bias, eps }, out)
}

/// `x += update`, rounded, then [`layer_norm`] of the sum.
///
/// Shapes: `x`, `update`, `out` `[T, H]`, `weight`, `bias` `[H]`.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn add_layer_norm<T: Element>(
    x: RowsMut<'_, T>,
    update: Rows<'_, T>,
    weight: &[T],
    bias: Option<&[T]>,
    eps: f32,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    add_and_norm_rows(x, update, Layer { weight, bias, eps }, out)
}

/// How a row is normed.
trait Norm<T>: Copy + Send + Sync {
    /// Checks the parameters against the width of a row.
    fn check(&self, width: usize) -> Result<(), ArgumentError>;

    /// Writes the norm of `x`.
    fn write<I: Isa>(&self, x: &[T], out: &mut [T]);
}

#[derive(Clone, Copy)]
struct Rms<'a, T> {
    weight: &'a [T],
    eps: f32,
    /// Added to the weights.
    offset: f32,
}

impl<T: Element> Norm<T> for Rms<'_, T> {
    fn check(&self, width: usize) -> Result<(), ArgumentError> {
        let group = self.weight.len();
        if group == 0 || !width.is_multiple_of(group) {
            return expect_equal("weight", "the width of x,", width, group);
        }
        Ok(())
    }

    #[inline(always)]
    fn write<I: Isa>(&self, x: &[T], out: &mut [T]) {
        // Rows without numbers have a weight without any.
        let group = self.weight.len().max(1);
        for (out, x) in out.chunks_exact_mut(group).zip(x.chunks_exact(group)) {
            let scale = inverse_rms::<I, T>(x, self.eps);
            for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = T::from_f32(x.to_f32() * scale * (weight.to_f32() + self.offset));
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Layer<'a, T> {
    weight: &'a [T],
    bias: Option<&'a [T]>,
    eps: f32,
}

impl<T: Element> Norm<T> for Layer<'_, T> {
    fn check(&self, width: usize) -> Result<(), ArgumentError> {
        expect_equal("weight", "the width of x,", width, self.weight.len())?;
        self.bias.map_or(Ok(()), |bias| {
            expect_equal("bias", "the width of x,", width, bias.len())
        })
    }

    #[inline(always)]
    fn write<I: Isa>(&self, x: &[T], out: &mut [T]) {
        let mean = sum_of::<T>(x, |x| x) / x.len() as f32;
        // Of the differences, in a second pass: no digits cancel.
        let variance = sum_of::<T>(x, |x| (x - mean) * (x - mean)) / x.len() as f32;
        let scale = 1.0 / (variance + self.eps).sqrt();
        let normed = |x: &T, weight: &T| (x.to_f32() - mean) * scale * weight.to_f32();
        let places = out.iter_mut().zip(x).zip(self.weight);
        if let Some(bias) = self.bias {
            for (((out, x), weight), bias) in places.zip(bias) {
                *out = T::from_f32(normed(x, weight) + bias.to_f32());
            }
        } else {
            for ((out, x), weight) in places {
                *out = T::from_f32(normed(x, weight));
            }
        }
    }
}

fn norm_rows<T: Element, N: Norm<T>>(
    x: Rows<'_, T>,
    norm: N,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let normed = Normed::new(x.len(), x.width(), norm, out)?;
    pool::split(x.len(), pool::grain(x.width()), |rows| {
        dispatch(NormRows { x, normed, rows });
    });
    Ok(())
}

fn add_and_norm_rows<T: Element, N: Norm<T>>(
    x: RowsMut<'_, T>,
    update: Rows<'_, T>,
    norm: N,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let (len, width, stride) = (x.len(), x.width(), x.stride());
    expect_equal("update", "the width of x,", width, update.width())?;
    expect_equal("update", "as many rows as x:", len, update.len())?;
    let normed = Normed::new(len, width, norm, out)?;
    let x = Disjoint::new(x.into_slice());
    pool::split(len, pool::grain(width), |rows| {
        dispatch(AddAndNormRows {
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
struct Normed<'a, T, N> {
    norm: N,
    out: Disjoint<'a, T>,
    stride: usize,
}

impl<'a, T: Element, N: Norm<T>> Normed<'a, T, N> {
    /// For `len` rows of `width`.
    fn new(len: usize, width: usize, norm: N, out: RowsMut<'a, T>) -> Result<Self, ArgumentError> {
        norm.check(width)?;
        expect_equal("out", "the width of x,", width, out.width())?;
        expect_equal("out", "as many rows as x:", len, out.len())?;
        Ok(Self {
            norm,
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
        self.norm.write::<I>(x, out);
    }
}

struct NormRows<'a, T, N> {
    x: Rows<'a, T>,
    normed: Normed<'a, T, N>,
    rows: Range<usize>,
}

impl<T: Element, N: Norm<T>> Kernel for NormRows<'_, T, N> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for row in self.rows {
            // SAFETY: each row belongs to one part.
            unsafe { self.normed.write::<I>(row, self.x.row(row)) };
        }
    }
}

struct AddAndNormRows<'a, T, N> {
    x: Disjoint<'a, T>,
    stride: usize,
    update: Rows<'a, T>,
    normed: Normed<'a, T, N>,
    rows: Range<usize>,
}

impl<T: Element, N: Norm<T>> Kernel for AddAndNormRows<'_, T, N> {
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

/// The sum of a term of each number, in the order of [`sum_lanes`].
#[inline(always)]
fn sum_of<T: Element>(x: &[T], term: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] += term(chunk[lane].to_f32());
        }
    }
    for (sum, number) in sums.iter_mut().zip(rest) {
        *sum += term(number.to_f32());
    }
    sum_lanes(sums)
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
