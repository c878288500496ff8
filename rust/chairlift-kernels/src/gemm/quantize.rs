//! Numbers to small integers: a scale, and whole multiples of it.
//!
//! Every operation is a single-precision one in a fixed order, so that the result has the same bits on
//! every instruction set (and in `tests/kernels/reference.py`).

use crate::{
    Element, Rows,
    gemm::rotation::{self, rotate},
    isa::{
        Isa,
        portable::{largest_magnitude, round_to_byte, sum_bytes},
    },
    memory::prefetch::opaque,
};
use half::f16;

/// Largest magnitude of an eight-bit integer here: the range is symmetric.
const MAX_INT8: f32 = 127.0;

/// Neighbours along `k` that are packed together, of weights and of inputs; they share a scale, perhaps with those of
/// other groups.
pub const GROUP: usize = 32;

/// Groups that share a scale at most.
pub(crate) const MAX_SPAN: usize = 4;

/// What a row of numbers is measured in.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Value of the integer 1; NaN where a number is not finite, so that all results are NaN.
    pub(crate) unit: f32,
    /// What numbers are multiplied with before rounding.
    inverse: f32,
}

/// The scale at which the largest magnitude becomes 127.
#[inline(always)]
fn scale_to(largest: f32) -> Scale {
    Scale {
        unit: unit(largest),
        inverse: inverse(largest),
    }
}

#[inline(always)]
fn unit(largest: f32) -> f32 {
    if largest.is_finite() {
        largest / MAX_INT8
    } else {
        f32::NAN
    }
}

#[inline(always)]
fn inverse(largest: f32) -> f32 {
    let inverse = MAX_INT8 / largest;
    // Numbers that are all (nearly) zero have none, and NaN has none.
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// Rounds groups to integers by one scale, that at which the largest magnitude becomes 127; gives its unit.
#[inline(always)]
pub(crate) fn round_by_one_scale<I: Isa>(
    groups: &[[f32; GROUP]],
    integers: &mut [[i8; GROUP]],
) -> f32 {
    let scale = scale_to(I::largest_magnitude(groups));
    for (integers, numbers) in integers.iter_mut().zip(groups) {
        *integers = round_group::<I>(numbers, scale);
    }
    scale.unit
}

/// The sum of integers, exactly.
#[inline(always)]
pub(crate) fn sum<I: Isa>(integers: &[i8]) -> i32 {
    let (groups, rest) = integers.as_chunks();
    I::sum_bytes(groups) + sum_bytes(rest)
}

/// Spans of inputs whose scales are computed side by side: a division of one number takes as long as of sixteen.
pub(crate) const SCALES: usize = 16;

/// The scales of spans of inputs.
pub(crate) struct Scales {
    units: [f32; SCALES],
    inverses: [f32; SCALES],
}

impl Scales {
    /// The scales of the first groups, `span` of which share one.
    #[inline(always)]
    pub(crate) fn of_spans<I: Isa>(groups: &[[f32; GROUP]], span: usize) -> Self {
        let mut largest = [0.0; SCALES];
        for (largest, span) in largest.iter_mut().zip(groups.chunks_exact(span)) {
            // Hidden from the compiler, which would gather numbers of several spans.
            *largest = I::largest_magnitude(opaque(span));
        }
        // In loops of their own, which become a few instructions each.
        let (mut units, mut inverses) = ([0.0; SCALES], [0.0; SCALES]);
        for place in 0..SCALES {
            units[place] = unit(largest[place]);
        }
        for place in 0..SCALES {
            inverses[place] = inverse(largest[place]);
        }
        Self { units, inverses }
    }

    /// The scale of a span.
    #[inline(always)]
    pub(crate) fn get(&self, place: usize) -> Scale {
        Scale {
            unit: self.units[place],
            inverse: self.inverses[place],
        }
    }
}

/// A group of inputs as integers.
#[inline(always)]
pub(crate) fn round_group<I: Isa>(numbers: &[f32; GROUP], scale: Scale) -> [i8; GROUP] {
    I::round_to_bytes(numbers, scale.inverse)
}

/// A group of weights: `scale * code + minimum`, or `scale * (code - offset)` with the offset of its format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Group {
    pub(crate) quants: [u8; GROUP],
    /// One for each half of the group.
    pub(crate) scales: [BlockScale; 2],
    pub(crate) min: BlockScale,
}

impl Group {
    pub(crate) const ZERO: Self = Self {
        quants: [0; GROUP],
        scales: [BlockScale::ZERO; 2],
        min: BlockScale::ZERO,
    };
}

/// A scale or a minimum: a small integer times a factor that groups share, or a number times 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BlockScale {
    pub(crate) count: f32,
    pub(crate) factor: f32,
}

impl BlockScale {
    pub(crate) const ZERO: Self = Self::of_one(0.0);

    pub(crate) const fn of_one(number: f32) -> Self {
        Self {
            count: number,
            factor: 1.0,
        }
    }

    #[inline(always)]
    pub(crate) fn value(self) -> f32 {
        self.count * self.factor
    }
}

/// Rows of weights that give their groups.
pub(crate) trait GroupSource: Sync {
    /// Gives groups of row `row` that share their scales, from group `first` on; codes beyond the end of the row may be
    /// any.
    fn read(&self, row: usize, first: usize, groups: &mut [Group]);

    /// Whether the rows are rotated ([`rotation`]).
    fn is_rotated(&self) -> bool;
}

/// Rows of numbers that are quantized.
pub(crate) struct QuantizedRows<'a, T> {
    weight: Rows<'a, T>,
    quantization: Quantization,
    is_rotated: bool,
}

/// What is made of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// Eight bits, a scale per 128 weights.
    Int8,
    /// Four bits, a scale and a minimum per group.
    Int4,
}

impl Quantization {
    /// Whether inputs and weights are rotated first ([`rotation`]). Four bits are not: weights that lie on a grid of
    /// four bits already, as those of a checkpoint in `Q4_1` do, would lose it.
    #[must_use]
    pub fn is_rotated(self) -> bool {
        self == Self::Int8
    }
}

impl<'a, T: Element> QuantizedRows<'a, T> {
    pub(crate) fn new(weight: Rows<'a, T>, quantization: Quantization, is_rotated: bool) -> Self {
        Self {
            weight,
            quantization,
            is_rotated,
        }
    }
}

impl<T: Element> GroupSource for QuantizedRows<'_, T> {
    fn is_rotated(&self) -> bool {
        self.is_rotated
    }

    #[inline(always)]
    fn read(&self, row: usize, first: usize, groups: &mut [Group]) {
        let row = self.weight.row(row);
        // Whole blocks of the rotation, with these groups among their numbers.
        let start = first * GROUP / rotation::BLOCK * rotation::BLOCK;
        let mut numbers = [0.0; MAX_SPAN * GROUP];
        let len = rotation::BLOCK.max(groups.len() * GROUP);
        let numbers = &mut numbers[..len.min(row.len() - start)];
        for (wide, number) in numbers.iter_mut().zip(&row[start..]) {
            *wide = number.to_f32();
        }
        if self.is_rotated {
            rotate(numbers);
        }
        let numbers = &numbers[first * GROUP - start..];
        let numbers = &numbers[..numbers.len().min(groups.len() * GROUP)];
        // The last number again: a group that ends early has no other range.
        let mut weights = [[numbers.last().copied().unwrap_or(0.0); GROUP]; MAX_SPAN];
        let weights = &mut weights[..groups.len()];
        weights.as_flattened_mut()[..numbers.len()].copy_from_slice(numbers);
        let largest = largest_magnitude(weights.as_flattened());
        for (group, weights) in groups.iter_mut().zip(weights) {
            *group = match self.quantization {
                _ if !largest.is_finite() => Group {
                    scales: [BlockScale::of_one(f32::NAN); 2],
                    min: BlockScale::of_one(f32::NAN),
                    ..Group::ZERO
                },
                Quantization::Int8 => quantize_int8(weights, largest),
                Quantization::Int4 => quantize_int4(weights),
            };
        }
    }
}

/// Codes of 1..=255, from -127 to 127 times a scale that f16 holds; the largest magnitude is that of all weights
/// which share the scale.
#[inline(always)]
fn quantize_int8(weights: &[f32; GROUP], largest: f32) -> Group {
    let scale = rounded(largest / MAX_INT8);
    let inverse = finite(1.0 / scale);
    let mut quants = [0; GROUP];
    for (code, weight) in quants.iter_mut().zip(weights) {
        *code = round_to_byte((weight * inverse).clamp(-MAX_INT8, MAX_INT8)) as u8 ^ 0x80;
    }
    Group {
        quants,
        scales: [BlockScale::of_one(scale); 2],
        min: BlockScale::ZERO,
    }
}

/// Ranges that are tried for 15 steps: in steps from the smallest weight on. Of a narrower range the largest
/// weights are clipped.
const TRIED: [f32; 12] = [
    15.0, 14.25, 14.5, 14.75, 15.25, 15.5, 15.75, 16.0, 16.25, 16.5, 16.75, 17.0,
];

/// Codes of 0..=15, with a scale and a minimum that f16 holds.
///
/// Each range gives codes, for which the best scale and minimum follow by least squares; codes are rounded
/// again to these as they are stored. The range with the smallest squared error counts (the method of
/// llama.cpp's K-quants, with all weights alike).
#[inline(always)]
fn quantize_int4(weights: &[f32; GROUP]) -> Group {
    let mut smallest = f32::INFINITY;
    let mut best = Group::ZERO;
    let (mut low, mut high) = (weights[0], weights[0]);
    for &weight in weights {
        low = if weight < low { weight } else { low };
        high = if weight > high { weight } else { high };
    }
    for steps in TRIED {
        let quants = round_codes(weights, low, finite(steps / (high - low)));
        let (scale, min) = fit(weights, &quants);
        let (scale, min) = (rounded(scale), rounded(min));
        let quants = round_codes(weights, min, finite(1.0 / scale));
        let error = squared_error(weights, &quants, scale, min);
        if error < smallest {
            smallest = error;
            best = Group {
                quants,
                scales: [BlockScale::of_one(scale); 2],
                min: BlockScale::of_one(min),
            };
        }
    }
    best
}

#[inline(always)]
fn round_codes(weights: &[f32; GROUP], min: f32, inverse: f32) -> [u8; GROUP] {
    let mut quants = [0; GROUP];
    for (code, weight) in quants.iter_mut().zip(weights) {
        *code = round_to_byte(((weight - min) * inverse).clamp(0.0, 15.0)) as u8;
    }
    quants
}

/// The scale and minimum with the least squared error for given codes.
#[inline(always)]
fn fit(weights: &[f32; GROUP], quants: &[u8; GROUP]) -> (f32, f32) {
    let (mut ones, mut squares) = (0, 0);
    for &code in quants {
        ones += u32::from(code);
        squares += u32::from(code) * u32::from(code);
    }
    let (ones, squares, count) = (ones as f32, squares as f32, GROUP as f32);
    let sum = sum_by_lanes(|k| weights[k]);
    let products = sum_by_lanes(|k| weights[k] * f32::from(quants[k]));
    let determinant = count * squares - ones * ones;
    if determinant <= 0.0 {
        return (0.0, sum / count);
    }
    let scale = (count * products - ones * sum) / determinant;
    let min = (squares * sum - ones * products) / determinant;
    (scale, min)
}

#[inline(always)]
fn squared_error(weights: &[f32; GROUP], quants: &[u8; GROUP], scale: f32, min: f32) -> f32 {
    sum_by_lanes(|k| {
        let difference = weights[k] - (scale * f32::from(quants[k]) + min);
        difference * difference
    })
}

/// Sums the numbers of a group over eight lanes, then over these.
#[inline(always)]
fn sum_by_lanes(number: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0; 8];
    for k in 0..GROUP {
        lanes[k % 8] += number(k);
    }
    let mut sum = 0.0;
    for lane in lanes {
        sum += lane;
    }
    sum
}

/// Rounded to f16.
#[inline(always)]
fn rounded(number: f32) -> f32 {
    f16::from_f32(number).to_f32()
}

/// Zero where the number is not finite: the inverse of a scale that is (nearly) zero.
#[inline(always)]
fn finite(number: f32) -> f32 {
    if number.is_finite() { number } else { 0.0 }
}
