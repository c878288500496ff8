//! Numbers to small integers: a scale, and whole multiples of it.
//!
//! Every operation is a single-precision one in a fixed order, so that the result has the same bits on
//! every instruction set (and in `chairlift.reference`).

use crate::{Element, bf16};

/// Numbers that are rounded at a time: whole groups.
pub(crate) const CHUNK: usize = 32 * GROUP;

/// Largest magnitude of an eight-bit integer here: the range is symmetric.
const MAX_INT8: f32 = 127.0;

/// Neighbours along `k` that share a scale of a four-bit weight.
pub const GROUP: usize = 32;

/// Adding it pushes the fraction of a number below 2^22 out of the mantissa: it rounds to nearest,
/// ties to even, and leaves the integer in the low bits.
const ROUNDER: f32 = 12_582_912.0;

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
pub(crate) fn scale_int8<T: Element>(numbers: &[T]) -> Scale {
    let largest = largest_magnitude(numbers);
    if !largest.is_finite() {
        return Scale {
            unit: f32::NAN,
            inverse: 0.0,
        };
    }
    let inverse = MAX_INT8 / largest;
    Scale {
        unit: largest / MAX_INT8,
        // Of numbers that are all (nearly) zero.
        inverse: if inverse.is_finite() { inverse } else { 0.0 },
    }
}

/// NaN if any number is.
#[inline(always)]
fn largest_magnitude<T: Element>(numbers: &[T]) -> f32 {
    // The bits of magnitudes are ordered as the magnitudes are, with NaN above infinity.
    let mut largest = 0;
    for number in numbers {
        largest = largest.max(number.to_f32().to_bits() & !SIGN);
    }
    f32::from_bits(largest)
}

const SIGN: u32 = 1 << 31;

/// Rounds up to [`CHUNK`] numbers to integers, in the front of a buffer; zeros fill the last group.
///
/// In memory, because what follows wants them in another order: a compiler that has them in registers
/// picks them out one by one.
#[inline(always)]
pub(crate) fn round_chunk<'b, T: Element>(
    numbers: &[T],
    scale: Scale,
    integers: &'b mut [i8; CHUNK],
) -> &'b [i8] {
    let (integers, _) = integers.split_at_mut(numbers.len().next_multiple_of(GROUP));
    let (whole, rest) = integers.split_at_mut(numbers.len());
    for (integer, number) in whole.iter_mut().zip(numbers) {
        *integer = round(number.to_f32() * scale.inverse);
    }
    rest.fill(0);
    integers
}

#[inline(always)]
fn round(number: f32) -> i8 {
    // Cut to a byte so that a NaN, whose row is NaN anyway, stays within what the kernels add up.
    let bits = (number + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits());
    bits as u8 as i8
}

/// Makes signed bytes of a word unsigned, or unsigned ones signed: adding 128 turns the highest bit.
pub(crate) const SIGNS: u32 = 0x8080_8080;

/// Four neighbours as bytes of a word, the first lowest.
#[inline(always)]
pub(crate) fn word(integers: [i8; 4]) -> u32 {
    let [a, b, c, d] = integers;
    u32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
}

/// A group of four-bit weights: integers of -8..=7 and their scale.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(crate) scale: bf16,
    pub(crate) integers: [i8; GROUP],
}

/// Parts of the largest magnitude that are tried as 8 scales; the one with the least error counts.
const TRIED: [f32; 8] = [1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 1.04, 1.08];

/// Rounds up to [`GROUP`] weights.
///
/// The scale has the sign that maps the weight of the largest magnitude to -8, which the positive
/// side does not have. Integers are rounded to the scale as it is stored: its own rounding costs
/// nothing.
#[inline(always)]
pub(crate) fn quantize_int4<T: Element>(numbers: &[T]) -> Group {
    let mut weights = [0.0; GROUP];
    for (weight, number) in weights.iter_mut().zip(numbers) {
        *weight = number.to_f32();
    }
    let largest = weights
        .into_iter()
        .fold(0.0, |a: f32, b: f32| if b.abs() > a.abs() { b } else { a });
    if !largest_magnitude(numbers).is_finite() {
        return Group {
            scale: bf16::NAN,
            integers: [0; GROUP],
        };
    }
    let mut best = Group {
        scale: bf16::ZERO,
        integers: [0; GROUP],
    };
    let mut least = f32::INFINITY;
    for part in TRIED {
        let tried = round_group(&weights, <bf16 as Element>::from_f32(largest * part / -8.0));
        let error = squared_error(&weights, &tried);
        if error < least {
            (best, least) = (tried, error);
        }
    }
    best
}

#[inline(always)]
fn round_group(weights: &[f32; GROUP], scale: bf16) -> Group {
    let inverse = 1.0 / scale.to_f32();
    let inverse = if inverse.is_finite() { inverse } else { 0.0 };
    let mut integers = [0; GROUP];
    for (integer, weight) in integers.iter_mut().zip(weights) {
        *integer = round((weight * inverse).clamp(-8.0, 7.0));
    }
    Group { scale, integers }
}

/// Summed over eight lanes, then over these.
#[inline(always)]
fn squared_error(weights: &[f32; GROUP], group: &Group) -> f32 {
    let scale = group.scale.to_f32();
    let mut lanes = [0.0; 8];
    for (index, (weight, integer)) in weights.iter().zip(group.integers).enumerate() {
        let difference = weight - scale * f32::from(integer);
        lanes[index % 8] += difference * difference;
    }
    lanes.into_iter().sum()
}
