//! What a kernel may ask of the instruction set that it is compiled for.
//!
//! Loops over slices of numbers become vector code by themselves. The tile of [`crate::gemm::accumulator`] does
//! not: its accumulators must stay in registers, so it is written with [`Isa::Vector`].

#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "tests alone multiply tiles there")
)]
pub(crate) mod amx;
pub mod dispatch;
pub mod element;
pub mod exp;
#[cfg(target_arch = "x86_64")]
mod features;
pub mod integers;
pub(crate) mod portable;
pub mod set;

use crate::isa::{integers::Integers, set::InstructionSet};
use half::bf16;

/// Numbers that conversions and exponentials take at a time: one AVX-512 register, one cache line of `f32`.
pub const BLOCK: usize = 16;

/// An instruction set: one register of numbers and the operations on it.
pub trait Isa: Integers + Send + Sync {
    /// A register.
    type Vector: Copy;

    /// Which set it is.
    const SET: InstructionSet;

    /// Numbers in a register.
    const LANES: usize;

    /// Rows of a tile at most, such that two registers per row, and what feeds them, fit.
    const ROWS: usize;

    /// `a * b + c`: fused where the set has the instruction, else two roundings.
    ///
    /// Never fused in software: `f32::mul_add` without the instruction is a slow library call.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;

    /// [`Self::mul_add`] of each lane.
    fn mul_add_lanes(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// `a * b + c` of each lane with one rounding on every set; perhaps slow where it has no such instruction.
    fn fused_mul_add(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;

    /// `a * b` of each lane.
    fn mul_lanes(a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a + b` of each lane.
    fn add_lanes(a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// `a - b` of each lane.
    fn sub_lanes(a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Sums and differences of lanes that are `DISTANCE` apart, a power of two below `LANES`: of a pair, the lower lane gets the
    /// sum, and the upper one the lower less the upper.
    fn add_pairs<const DISTANCE: usize>(vector: Self::Vector) -> Self::Vector;

    /// The larger of each lane; that of `b` where one is NaN.
    fn max_lanes(a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// A bit for each lane: whether that of `a` is above that of `b`.
    fn above(a: Self::Vector, b: Self::Vector) -> u32;

    /// The lanes of `a` whose bits are set; elsewhere those of `b`.
    fn select_lanes(bits: u32, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// One number in every lane.
    fn splat(number: f32) -> Self::Vector;

    /// The first `LANES` numbers.
    fn load(numbers: &[f32]) -> Self::Vector;

    /// Replaces the first `LANES` numbers.
    fn store(vector: Self::Vector, numbers: &mut [f32]);

    /// The `f16` in the first `LANES / 2` words, low halves first, widened.
    fn load_halves(words: &[u32]) -> Self::Vector;

    /// Words as the bits of numbers.
    fn from_bits(words: Self::Words) -> Self::Vector;

    /// The bf16 in the low half of each word, widened.
    fn low(words: Self::Words) -> Self::Vector;

    /// The bf16 in the high half of each word, widened.
    fn high(words: Self::Words) -> Self::Vector;

    /// `2^x` of the numbers of a block, as of [`exp::exp2`].
    fn exp2_block(numbers: &mut [f32; BLOCK]);

    /// Signed words as numbers, rounded where they have more than 24 bits.
    fn convert(words: Self::Words) -> Self::Vector;

    /// Stores the numbers rounded to bf16, in `LANES / 2` pairs.
    ///
    /// The instruction, where there is one, takes subnormal numbers for zero.
    fn store_pairs(vector: Self::Vector, pairs: &mut [u32]);

    /// The numbers of a block rounded to bf16; the instruction, where there is one, as of [`Self::store_pairs`].
    fn round_block(numbers: &[f32; BLOCK], out: &mut [bf16; BLOCK]);

    /// Stores the numbers of two registers rounded to bf16, as [`Element::from_f32`](element::Element::from_f32) rounds them.
    #[inline(always)]
    fn store_rounded(registers: [Self::Vector; 2], out: &mut [bf16]) {
        let mut numbers = [0.0; 32];
        for (register, numbers) in registers.into_iter().zip(numbers.chunks_mut(Self::LANES)) {
            Self::store(register, numbers);
        }
        for (out, number) in out[..2 * Self::LANES].iter_mut().zip(numbers) {
            *out = <bf16 as element::Element>::from_f32(number);
        }
    }

    /// Whole numbers as pairs of bf16, which holds them exactly.
    #[inline(always)]
    fn widen_to_pairs(codes: &[i8; 32], pairs: &mut [u32; 16]) {
        for (pair, codes) in pairs.iter_mut().zip(codes.as_chunks::<2>().0) {
            let [low, high] = [codes[0], codes[1]].map(|code| f32::from(code).to_bits());
            *pair = low >> 16 | high;
        }
    }

    /// The largest magnitude of some numbers; NaN if one is.
    #[inline(always)]
    fn largest_magnitude(numbers: &[[f32; 32]]) -> f32 {
        portable::largest_magnitude(numbers.as_flattened())
    }

    /// Numbers times a factor, as [`portable::round_to_byte`] rounds the products.
    #[inline(always)]
    fn round_to_bytes(numbers: &[f32; 32], factor: f32) -> [i8; 32] {
        numbers.map(|number| portable::round_to_byte(number * factor))
    }

    /// The sum of some bytes.
    #[inline(always)]
    fn sum_bytes(bytes: &[[i8; 32]]) -> i32 {
        let mut sum = 0;
        for bytes in bytes {
            sum += portable::sum_bytes(bytes);
        }
        sum
    }

    /// Whether `add_pair_dot` is one instruction.
    const HAS_PAIR_DOT: bool = false;

    /// Adds the products of the two bf16 in each word of `a` and of `b`.
    ///
    /// It follows Intel's description of `VDPBF16PS`: two fused multiply-adds, that of the high halves first. The
    /// instruction itself takes subnormal numbers for zero.
    #[inline(always)]
    fn add_pair_dot(sums: Self::Vector, a: Self::Words, b: Self::Words) -> Self::Vector {
        add_pair_dot_by_halves::<Self>(sums, a, b)
    }
}

/// [`Isa::add_pair_dot`] by the other operations.
#[inline(always)]
fn add_pair_dot_by_halves<I: Isa>(sums: I::Vector, a: I::Words, b: I::Words) -> I::Vector {
    let sums = I::mul_add_lanes(I::high(a), I::high(b), sums);
    I::mul_add_lanes(I::low(a), I::low(b), sums)
}

/// Mask of the high half of a word.
const HIGH: u32 = 0xffff_0000;

#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(test)]
pub(crate) use portable::Plain;
pub(crate) use portable::Portable;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::dispatch::{Kernel, dispatch};
    use crate::{Element, bf16};

    /// What is done to groups of inputs before they are multiplied.
    struct Groups([[f32; 32]; 3]);

    impl Kernel for Groups {
        type Output = (u32, [[i8; 32]; 3], i32, Vec<u32>);

        #[inline(always)]
        fn run<I: Isa>(self) -> Self::Output {
            let bytes = self.0.map(|numbers| I::round_to_bytes(&numbers, 3.7));
            let mut mixed = Vec::new();
            for start in (0..32).step_by(I::LANES) {
                let numbers = I::load(&self.0[1][start..]);
                let numbers = I::add_pairs::<2>(I::add_pairs::<1>(numbers));
                let numbers = I::add_pairs::<4>(numbers);
                let lanes = I::sub_lanes(I::add_lanes(numbers, numbers), numbers);
                let mut stored = [0.0; 16];
                I::store(lanes, &mut stored);
                mixed.extend(stored[..I::LANES].iter().map(|number| number.to_bits()));
            }
            let largest = I::largest_magnitude(&self.0).to_bits();
            (largest, bytes, I::sum_bytes(&bytes), mixed)
        }
    }

    #[test]
    fn every_set_quantizes_and_mixes_as_plain_code_does() {
        let ramp: [f32; 32] = std::array::from_fn(|k| (k as f32 * 2.3 - 33.9) * 0.97);
        let halves: [f32; 32] = std::array::from_fn(|k| (k as f32 - 15.5) / 3.7);
        let mut lowest = [-34.0; 32];
        lowest[31] = -34.3;
        let mut infinite = ramp;
        infinite[17] = f32::NEG_INFINITY;
        for numbers in [ramp, halves, lowest, [0.0; 32], [-0.0; 32], infinite] {
            let smaller = numbers.map(|number| number / 2.0);
            let groups = [smaller, numbers, smaller];
            let expected = Groups(groups).run::<Portable>();
            let found = dispatch(Groups(groups));
            assert_eq!(found.0, expected.0, "the largest of {numbers:?}");
            if numbers.iter().all(|number| number.is_finite()) {
                assert_eq!(found, expected, "{numbers:?}");
            }
        }
    }

    #[test]
    fn a_number_that_is_none_is_the_largest_magnitude() {
        let mut numbers = [f32::INFINITY; 32];
        numbers[5] = f32::NAN;
        let groups = [[1.0; 32], numbers, [2.0; 32]];
        assert!(f32::from_bits(dispatch(Groups(groups)).0).is_nan());
    }

    struct Dot([f32; 16], u32, [u32; 16]);

    impl Kernel for Dot {
        type Output = [f32; 16];

        const USES_BF16: bool = true;

        #[inline(always)]
        fn run<I: Isa>(self) -> [f32; 16] {
            let mut sums = self.0;
            for start in (0..16).step_by(I::LANES) {
                let sum = I::load(&sums[start..]);
                let b = I::load_words(&self.2[start..]);
                let sum = I::add_pair_dot(sum, I::splat_word(self.1), b);
                I::store(sum, &mut sums[start..]);
            }
            sums
        }
    }

    #[test]
    fn both_products_of_a_pair_are_added() {
        let pair = |low: f32, high: f32| bf16::pack(&[low, high].map(bf16::from_f32));
        let lanes: [f32; 16] = std::array::from_fn(|lane| lane as f32);
        let b = lanes.map(|lane| pair(lane - 7.0, 100.0 - lane));
        // Whole numbers: exact, in whatever order an instruction adds.
        let expected = lanes.map(|lane| lane / 2.0 + 3.0 * (lane - 7.0) - 111.0 * (100.0 - lane));
        let sums = lanes.map(|lane| lane / 2.0);
        assert_eq!(dispatch(Dot(sums, pair(3.0, -111.0), b)), expected);
    }

    struct RoundBlock([f32; 16]);

    impl Kernel for RoundBlock {
        type Output = [bf16; 16];

        const USES_BF16: bool = true;

        #[inline(always)]
        fn run<I: Isa>(self) -> [bf16; 16] {
            let mut out = [bf16::ZERO; 16];
            I::round_block(&self.0, &mut out);
            out
        }
    }

    struct StoreRounded([f32; 32]);

    impl Kernel for StoreRounded {
        type Output = Vec<bf16>;

        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<bf16> {
            let mut out = vec![bf16::ZERO; 2 * I::LANES];
            I::store_rounded([I::load(&self.0), I::load(&self.0[I::LANES..])], &mut out);
            out
        }
    }

    #[test]
    fn registers_are_stored_as_their_numbers_round() {
        let highs: [u32; 32] = std::array::from_fn(|lane| 0x0800 * lane as u32);
        for step in 0..0x0800 {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let numbers = highs.map(|high| f32::from_bits((high + step) << 16 | low));
                for (number, rounded) in numbers.into_iter().zip(dispatch(StoreRounded(numbers))) {
                    let expected = <bf16 as Element>::from_f32(number);
                    assert_eq!(rounded.to_bits(), expected.to_bits(), "{number:e}");
                }
            }
        }
    }

    #[test]
    fn a_block_rounds_as_its_numbers_do() {
        let highs: [u32; 16] = std::array::from_fn(|lane| 0x1111 * lane as u32);
        for step in 0..0x1111 {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let numbers = highs.map(|high| f32::from_bits((high + step) << 16 | low));
                let rounded = dispatch(RoundBlock(numbers));
                for (number, rounded) in numbers.into_iter().zip(rounded) {
                    let expected = <bf16 as Element>::from_f32(number);
                    let is_zero = number.is_subnormal() && rounded.to_f32() == 0.0;
                    let is_nan = number.is_nan() && rounded.is_nan();
                    assert!(rounded == expected || is_zero || is_nan, "{number:e}");
                }
            }
        }
    }
}
