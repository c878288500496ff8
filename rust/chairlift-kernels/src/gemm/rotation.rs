//! Rotation of rows before they are quantized: neighbours along `k` are mixed, so that one large number is spread over
//! them and does not make the scale of its group coarse for the others.
//!
//! A row is multiplied by a block-diagonal matrix of Hadamard matrices, each divided by the root of its size: as many
//! blocks of 64 as fit, of the rest blocks of 16, then of 4, and up to three numbers that stay. The matrix is its own
//! inverse, so that a layer whose weights and inputs are both rotated computes the same function.
//!
//! Numbers are added, subtracted and multiplied by constants in a fixed order: the same bits on every instruction set.

use crate::isa::{
    Isa,
    dispatch::{Kernel, dispatch},
    portable::add_pairs,
};
use crate::{RowsMut, gemm::quantize::GROUP};
use std::f32::consts::FRAC_1_SQRT_2;

/// Numbers of the largest block.
pub(crate) const BLOCK: usize = 2 * GROUP;

/// Rotates rows in place.
pub fn rotate_rows(rows: RowsMut<'_, f32>) {
    rows.par_rows(|part| {
        for (_, row) in part {
            rotate(row);
        }
    });
}

/// Rotates a row in place.
pub(crate) fn rotate(row: &mut [f32]) {
    dispatch(Rotate { row });
}

/// Rotates heads of keys, values or queries in place; see [`rotate_head`].
pub(crate) struct RotateHeads<'a> {
    pub(crate) heads: &'a mut [f32],
    pub(crate) head_dim: usize,
}

impl Kernel for RotateHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for head in self.heads.chunks_exact_mut(self.head_dim) {
            rotate_head::<I>(head);
        }
    }
}

/// Rotates a head in place, as a part of a kernel: its blocks as those of a row, and then, where its width is a power of two,
/// its blocks of 64 with each other, so that all of its numbers are mixed.
#[inline(always)]
pub(crate) fn rotate_head<I: Isa>(head: &mut [f32]) {
    rotate_inline::<I>(head);
    if !head.len().is_power_of_two() {
        return;
    }
    let mut distance = BLOCK;
    while distance < head.len() {
        for blocks in head.chunks_exact_mut(2 * distance) {
            let (first, second) = blocks.split_at_mut(distance);
            for (first, second) in first.iter_mut().zip(second) {
                let (a, b) = (*first, *second);
                *first = (a + b) * FRAC_1_SQRT_2;
                *second = (a - b) * FRAC_1_SQRT_2;
            }
        }
        distance *= 2;
    }
}

struct Rotate<'a> {
    row: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        rotate_inline::<I>(self.row);
    }
}

/// Rotates a row in place, as a part of a kernel.
#[inline(always)]
pub(crate) fn rotate_inline<I: Isa>(row: &mut [f32]) {
    let (blocks, rest) = row.as_chunks_mut::<BLOCK>();
    for block in blocks {
        rotate_block::<I>(block);
    }
    let (blocks, rest) = rest.as_chunks_mut::<16>();
    for block in blocks {
        *block = sixteen(block).map(|number| number * 0.25);
    }
    for block in rest.as_chunks_mut::<4>().0 {
        *block = add_pairs::<1, 4>(&add_pairs::<2, 4>(block)).map(|number| number * 0.5);
    }
}

/// In registers: of plain loops the compiler makes gathers and scatters over several blocks.
#[inline(always)]
fn rotate_block<I: Isa>(block: &mut [f32; BLOCK]) {
    const { assert!(I::LANES == 8 || I::LANES == 16, "whole registers") };
    let count = BLOCK / I::LANES;
    let mut registers = [I::splat(0.0); BLOCK / 8];
    for r in 0..count {
        registers[r] = I::load(&block[r * I::LANES..]);
    }
    for distance in [32, 16, 8] {
        let stride = distance / I::LANES;
        for r in 0..count {
            if stride > 0 && r & stride == 0 {
                let (first, second) = (registers[r], registers[r + stride]);
                registers[r] = I::add_lanes(first, second);
                registers[r + stride] = I::sub_lanes(first, second);
            }
        }
    }
    let eighth = I::splat(0.125);
    for r in 0..count {
        let mut numbers = registers[r];
        if I::LANES == 16 {
            numbers = I::add_pairs::<8>(numbers);
        }
        numbers = I::add_pairs::<2>(I::add_pairs::<4>(numbers));
        numbers = I::mul_lanes(I::add_pairs::<1>(numbers), eighth);
        I::store(numbers, &mut block[r * I::LANES..]);
    }
}

/// The Hadamard matrix of 16 times as many numbers.
#[inline(always)]
fn sixteen(numbers: &[f32; 16]) -> [f32; 16] {
    let numbers = add_pairs::<4, 16>(&add_pairs::<8, 16>(numbers));
    add_pairs::<1, 16>(&add_pairs::<2, 16>(&numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the signs of the matrix.
    fn expected(row: &[f32]) -> Vec<f32> {
        let mut rotated = Vec::new();
        let mut rest = row;
        for size in [64_u8, 16, 4, 1] {
            while rest.len() >= usize::from(size) {
                let (block, after) = rest.split_at(usize::from(size));
                rotated.extend((0..usize::from(size)).map(|output| {
                    let signed = block.iter().enumerate().map(|(input, number)| {
                        let is_negative = (input & output).count_ones() % 2 == 1;
                        if is_negative { -number } else { *number }
                    });
                    signed.sum::<f32>() / f32::from(size).sqrt()
                }));
                rest = after;
            }
        }
        rotated
    }

    #[test]
    fn a_row_is_multiplied_by_hadamard_matrices_of_64_then_16_then_4() {
        for len in [1, 3, 4, 31, 33, 64, 100, 150, 576] {
            // Sums of small integers are exact.
            let row: Vec<f32> = (0..len).map(|k| (k * 37 % 29) as f32 - 14.0).collect();
            let mut rotated = row.clone();
            rotate(&mut rotated);
            assert_eq!(rotated, expected(&row), "{len}");
            rotate(&mut rotated);
            assert_eq!(rotated, row, "{len}: it is its own inverse");
        }
    }
}
