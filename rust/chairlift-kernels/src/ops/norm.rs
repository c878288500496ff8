//! Normalization of rows: RMS (Zhang and Sennrich, 2019) and layer (Ba, Kiros and Hinton, 2016).

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::rows::{IterMut, Rows, RowsMut},
};

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
    let norm = RmsNorm {
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
    let norm = RmsNorm {
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
    norm_rows(x, LayerNorm { weight, bias, eps }, out)
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
    add_and_norm_rows(x, update, LayerNorm { weight, bias, eps }, out)
}

/// How a row is normed.
trait Norm<T>: Copy + Send + Sync {
    /// Checks the parameters against the width of a row.
    fn check(&self, width: usize) -> Result<(), ArgumentError>;

    /// Writes the norm of `x`.
    fn write<I: Isa>(&self, x: &[T], out: &mut [T]);
}

#[derive(Clone, Copy)]
struct RmsNorm<'a, T> {
    weight: &'a [T],
    eps: f32,
    /// Added to the weights.
    offset: f32,
}

impl<T: Element> Norm<T> for RmsNorm<'_, T> {
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
struct LayerNorm<'a, T> {
    weight: &'a [T],
    bias: Option<&'a [T]>,
    eps: f32,
}

impl<T: Element> Norm<T> for LayerNorm<'_, T> {
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
    check(x.len(), x.width(), norm, &out)?;
    out.par_rows(|out| dispatch(NormRows { x, norm, out }));
    Ok(())
}

fn add_and_norm_rows<T: Element, N: Norm<T>>(
    x: RowsMut<'_, T>,
    update: Rows<'_, T>,
    norm: N,
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    let (len, width) = (x.len(), x.width());
    expect_equal("update", "the width of x,", width, update.width())?;
    expect_equal("update", "as many rows as x:", len, update.len())?;
    check(len, width, norm, &out)?;
    x.par_rows_with(out, |x, out| {
        dispatch(AddAndNormRows {
            x,
            update,
            norm,
            out,
        });
    });
    Ok(())
}

/// Checks a norm and its output against `len` rows of `width`.
fn check<T: Element, N: Norm<T>>(
    len: usize,
    width: usize,
    norm: N,
    out: &RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    norm.check(width)?;
    expect_equal("out", "the width of x,", width, out.width())?;
    expect_equal("out", "as many rows as x:", len, out.len())
}

struct NormRows<'a, T, N> {
    x: Rows<'a, T>,
    norm: N,
    out: IterMut<'a, T>,
}

impl<T: Element, N: Norm<T>> Kernel for NormRows<'_, T, N> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (row, out) in self.out {
            self.norm.write::<I>(self.x.row(row), out);
        }
    }
}

struct AddAndNormRows<'a, T, N> {
    x: IterMut<'a, T>,
    update: Rows<'a, T>,
    norm: N,
    out: IterMut<'a, T>,
}

impl<T: Element, N: Norm<T>> Kernel for AddAndNormRows<'_, T, N> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for ((row, x), (_, out)) in self.x.zip(self.out) {
            for (x, update) in x.iter_mut().zip(self.update.row(row)) {
                *x = T::from_f32(x.to_f32() + update.to_f32());
            }
            self.norm.write::<I>(x, out);
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
