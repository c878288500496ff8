//! What a kernel may ask of the instruction set that it is compiled for.
//!
//! Loops over slices of numbers become vector code by themselves. The tile of [`crate::tile`] does
//! not: its accumulators must stay in registers, so it is written with [`Isa::Vector`].

use crate::dispatch::InstructionSet;
use crate::element::Element;
use crate::integers::Integers;
use half::bf16;

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

    /// The larger of each lane; that of `b` where one is NaN.
    fn max_lanes(a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// One number in every lane.
    fn splat(number: f32) -> Self::Vector;

    /// The first `LANES` numbers.
    fn load(numbers: &[f32]) -> Self::Vector;

    /// Replaces the first `LANES` numbers.
    fn store(vector: Self::Vector, numbers: &mut [f32]);

    /// The bf16 in the low half of each word, widened.
    fn low(words: Self::Words) -> Self::Vector;

    /// The same of the high halves.
    fn high(words: Self::Words) -> Self::Vector;

    /// Signed words as numbers, rounded where they have more than 24 bits.
    fn convert(words: Self::Words) -> Self::Vector;

    /// Stores the numbers rounded to bf16, in `LANES / 2` pairs.
    ///
    /// The instruction, where there is one, takes subnormal numbers for zero.
    #[inline(always)]
    fn store_pairs(vector: Self::Vector, pairs: &mut [u32]) {
        store_pairs_by_numbers::<Self>(vector, pairs);
    }

    /// Whole numbers as pairs of bf16, which holds them exactly.
    #[inline(always)]
    fn widen_to_pairs(codes: &[i8; 32], pairs: &mut [u32; 16]) {
        for (pair, codes) in pairs.iter_mut().zip(codes.as_chunks::<2>().0) {
            let [low, high] = [codes[0], codes[1]].map(|code| f32::from(code).to_bits());
            *pair = low >> 16 | high;
        }
    }

    /// Whether `add_pair_dot` is one instruction.
    const HAS_PAIR_DOT: bool = false;

    /// Adds the products of the two bf16 in each word of `a` and of `b`.
    ///
    /// As Intel describes `VDPBF16PS`: two fused multiply-adds, that of the high halves first. The
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

/// [`Isa::store_pairs`] by the other operations.
#[inline(always)]
fn store_pairs_by_numbers<I: Isa>(vector: I::Vector, pairs: &mut [u32]) {
    let mut numbers = [0.0; 16];
    I::store(vector, &mut numbers);
    let numbers = numbers[..I::LANES].as_chunks::<2>().0;
    for (pair, numbers) in pairs.iter_mut().zip(numbers) {
        *pair = bf16::pack(&numbers.map(<bf16 as Element>::from_f32));
    }
}

/// Mask of the high half of a word.
const HIGH: u32 = 0xffff_0000;

/// Plain code for whatever the build targets.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

impl Isa for Portable {
    type Vector = [f32; 8];

    const SET: InstructionSet = InstructionSet::Portable;
    const LANES: usize = 8;
    // Registers are taken to be sixteen of four lanes.
    const ROWS: usize = 2;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        // AArch64 always has the fused instruction.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }

    #[inline(always)]
    fn mul_add_lanes(a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        let mut sum = c;
        for lane in 0..8 {
            sum[lane] = Self::mul_add(a[lane], b[lane], c[lane]);
        }
        sum
    }

    #[inline(always)]
    fn max_lanes(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        let mut larger = b;
        for lane in 0..8 {
            larger[lane] = if a[lane] > b[lane] { a[lane] } else { b[lane] };
        }
        larger
    }

    #[inline(always)]
    fn splat(number: f32) -> [f32; 8] {
        [number; 8]
    }

    #[inline(always)]
    fn load(numbers: &[f32]) -> [f32; 8] {
        *numbers.first_chunk().expect("a register of numbers")
    }

    #[inline(always)]
    fn store(vector: [f32; 8], numbers: &mut [f32]) {
        numbers[..8].copy_from_slice(&vector);
    }

    #[inline(always)]
    fn low(words: [u32; 8]) -> [f32; 8] {
        words.map(|word| f32::from_bits(word << 16))
    }

    #[inline(always)]
    fn high(words: [u32; 8]) -> [f32; 8] {
        words.map(|word| f32::from_bits(word & HIGH))
    }

    #[inline(always)]
    fn convert(words: [u32; 8]) -> [f32; 8] {
        words.map(|word| word.cast_signed() as f32)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{HIGH, InstructionSet, Isa, add_pair_dot_by_halves, store_pairs_by_numbers};
    use std::arch::x86_64::{
        __m256, __m256bh, __m256i, __m512, __m512bh, __m512i, _mm_loadu_si128, _mm256_and_si256,
        _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_max_ps,
        _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps,
        _mm256_storeu_si256, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
        _mm512_cvtepi8_epi32, _mm512_cvtepi32_ps, _mm512_cvtneps_pbh, _mm512_dpbf16_ps,
        _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_max_ps, _mm512_permutex2var_epi16,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps,
        _mm512_storeu_si512,
    };
    use std::mem::transmute;

    /// Of two registers of words, the odd ones.
    const UPPER_HALVES: [u16; 32] = [
        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47,
        49, 51, 53, 55, 57, 59, 61, 63,
    ];

    /// 256-bit registers.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2;

    /// 512-bit registers, perhaps with dot products of bytes (VNNI) and of bf16.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512<const VNNI: bool, const BF16: bool>;

    /// Implements [`Isa`] by intrinsics.
    ///
    /// SAFETY of its blocks: `dispatch` makes an instance only inside a function that enables the
    /// features, and calls that only where the machine has them; loads and stores check lengths.
    macro_rules! implement {
        (
            [$($parameters:tt)*] $Set:ty, $Vector:ty, $lanes:literal lanes, $rows:literal rows,
            $fmadd:ident, $max:ident, $set1:ident, $loadu:ident, $storeu:ident,
            $set1_word:ident, $and:ident, $shift_left:ident, $cast:ident, $convert:ident,
            $($more:item)*
        ) => {
            impl<$($parameters)*> Isa for $Set {
                type Vector = $Vector;

                const LANES: usize = $lanes;
                const ROWS: usize = $rows;

                #[inline(always)]
                fn mul_add(a: f32, b: f32, c: f32) -> f32 {
                    a.mul_add(b, c)
                }

                #[inline(always)]
                fn mul_add_lanes(a: $Vector, b: $Vector, c: $Vector) -> $Vector {
                    // SAFETY: see the macro.
                    unsafe { $fmadd(a, b, c) }
                }

                #[inline(always)]
                fn max_lanes(a: $Vector, b: $Vector) -> $Vector {
                    // SAFETY: see the macro.
                    unsafe { $max(a, b) }
                }

                #[inline(always)]
                fn splat(number: f32) -> $Vector {
                    // SAFETY: see the macro.
                    unsafe { $set1(number) }
                }

                #[inline(always)]
                fn load(numbers: &[f32]) -> $Vector {
                    let numbers = &numbers[..$lanes];
                    // SAFETY: see the macro.
                    unsafe { $loadu(numbers.as_ptr()) }
                }

                #[inline(always)]
                fn store(vector: $Vector, numbers: &mut [f32]) {
                    let numbers = &mut numbers[..$lanes];
                    // SAFETY: see the macro.
                    unsafe { $storeu(numbers.as_mut_ptr(), vector) }
                }

                #[inline(always)]
                fn low(words: Self::Words) -> $Vector {
                    // SAFETY: see the macro.
                    unsafe { $cast($shift_left::<16>(words)) }
                }

                #[inline(always)]
                fn high(words: Self::Words) -> $Vector {
                    // SAFETY: see the macro.
                    unsafe { $cast($and(words, $set1_word(HIGH.cast_signed()))) }
                }

                #[inline(always)]
                fn convert(words: Self::Words) -> $Vector {
                    // SAFETY: see the macro.
                    unsafe { $convert(words) }
                }

                $($more)*
            }
        };
    }

    // 12 accumulators, 2 of B, 1 of a row and the mask are 16 registers.
    implement!(
        [] Avx2, __m256, 8 lanes, 6 rows,
        _mm256_fmadd_ps, _mm256_max_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps,
        _mm256_set1_epi32, _mm256_and_si256, _mm256_slli_epi32,
        _mm256_castsi256_ps, _mm256_cvtepi32_ps,
        const SET: InstructionSet = InstructionSet::Avx2;
    );
    implement!(
        [const VNNI: bool, const BF16: bool] Avx512<VNNI, BF16>, __m512, 16 lanes, 12 rows,
        _mm512_fmadd_ps, _mm512_max_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps,
        _mm512_set1_epi32, _mm512_and_si512, _mm512_slli_epi32,
        _mm512_castsi512_ps, _mm512_cvtepi32_ps,
        const SET: InstructionSet = InstructionSet::avx512(VNNI, BF16);
        const HAS_PAIR_DOT: bool = BF16;

        #[inline(always)]
        fn store_pairs(vector: __m512, pairs: &mut [u32]) {
            if BF16 {
                let pairs = &mut pairs[..8];
                // SAFETY: see the macro; the slice is as long as the register.
                unsafe {
                    let words = transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(vector));
                    _mm256_storeu_si256(pairs.as_mut_ptr().cast(), words);
                }
            } else {
                store_pairs_by_numbers::<Self>(vector, pairs);
            }
        }

        #[inline(always)]
        fn widen_to_pairs(codes: &[i8; 32], pairs: &mut [u32; 16]) {
            // SAFETY: see the macro; the arrays are as long as what is loaded and stored.
            unsafe {
                let low = _mm_loadu_si128(codes.as_ptr().cast());
                let high = _mm_loadu_si128(codes.as_ptr().add(16).cast());
                let low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(low));
                let high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(high));
                // Their upper halves: the lower ones are zero.
                let words = _mm512_permutex2var_epi16(
                    _mm512_castps_si512(low),
                    transmute::<[u16; 32], __m512i>(UPPER_HALVES),
                    _mm512_castps_si512(high),
                );
                _mm512_storeu_si512(pairs.as_mut_ptr().cast(), words);
            }
        }

        #[inline(always)]
        fn add_pair_dot(sums: __m512, a: __m512i, b: __m512i) -> __m512 {
            if BF16 {
                // SAFETY: see the macro. Any 512 bits are pairs of bf16.
                unsafe {
                    let a = transmute::<__m512i, __m512bh>(a);
                    let b = transmute::<__m512i, __m512bh>(b);
                    _mm512_dpbf16_ps(sums, a, b)
                }
            } else {
                add_pair_dot_by_halves::<Self>(sums, a, b)
            }
        }
    );
}
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Kernel, dispatch};
    use crate::{Element, bf16};

    struct Dot([f32; 16], u32, [u32; 16]);

    impl Kernel for Dot {
        type Output = [f32; 16];

        const USES_PAIR_DOT: bool = true;

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
}
