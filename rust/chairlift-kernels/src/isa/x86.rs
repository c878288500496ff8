//! [`Isa`] by intrinsics of x86-64.

use crate::isa::{
    BLOCK, HIGH, Isa, add_pair_dot_by_halves,
    portable::{ROUNDER, exp2_block_by_numbers, round_block_by_numbers, store_pairs_by_numbers},
    set::InstructionSet,
};
use half::bf16;
use rounding::{round_16, round_32};
use std::arch::x86_64::{
    __m256, __m256bh, __m256i, __m512, __m512bh, __m512i, _CMP_GT_OQ, _MM_FROUND_TO_NEG_INF,
    _mm_add_epi64, _mm_cvtsi128_si32, _mm_loadu_si128, _mm_sad_epu8, _mm_set1_epi8,
    _mm_setzero_si128, _mm_unpackhi_epi64, _mm_xor_si128, _mm256_add_ps, _mm256_and_si256,
    _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cmpeq_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_ps,
    _mm256_movemask_ps, _mm256_mul_ps, _mm256_permute_ps, _mm256_permute2f128_ps, _mm256_set_m128i,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_storeu_ps, _mm256_storeu_si256,
    _mm256_sub_ps, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_cmp_ps_mask, _mm512_cvtepi8_epi32, _mm512_cvtepi32_epi8, _mm512_cvtepi32_ps,
    _mm512_cvtneps_pbh, _mm512_cvtph_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
    _mm512_loadu_si512, _mm512_mask_blend_ps, _mm512_max_epu32, _mm512_max_ps, _mm512_mul_ps,
    _mm512_permute_ps, _mm512_permutex2var_epi16, _mm512_reduce_max_epu32, _mm512_reduce_ps,
    _mm512_scalef_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_si512,
    _mm512_shuffle_f32x4, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_storeu_si512, _mm512_sub_ps,
};
use std::mem::transmute;

mod rounding;

/// The indices of the odd 16-bit halves of two registers.
const UPPER_HALVES: [u16; 32] = [
    1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43, 45, 47, 49,
    51, 53, 55, 57, 59, 61, 63,
];

/// What the number of each lane is multiplied with before [`Isa::add_pairs`] adds it to that of the other lane.
const fn signs<const DISTANCE: usize, const LANES: usize>() -> [f32; LANES] {
    let mut signs = [1.0; LANES];
    let mut lane = 0;
    while lane < LANES {
        if lane & DISTANCE != 0 {
            signs[lane] = -1.0;
        }
        lane += 1;
    }
    signs
}

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
        $fmadd:ident, $mul:ident, $add:ident, $sub:ident, $max:ident, $set1:ident, $loadu:ident, $storeu:ident,
        $set1_word:ident, $and:ident, $shift_left:ident, $cast:ident, $convert:ident,
        $load_half:ident, $widen_half:ident,
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
            fn fused_mul_add(a: $Vector, b: $Vector, c: $Vector) -> $Vector {
                Self::mul_add_lanes(a, b, c)
            }

            #[inline(always)]
            fn load_halves(words: &[u32]) -> $Vector {
                let words = &words[..$lanes / 2];
                // SAFETY: see the macro; the slice is half as long as the register.
                unsafe { $widen_half($load_half(words.as_ptr().cast())) }
            }

            #[inline(always)]
            fn from_bits(words: Self::Words) -> $Vector {
                // SAFETY: see the macro.
                unsafe { $cast(words) }
            }

            #[inline(always)]
            fn mul_lanes(a: $Vector, b: $Vector) -> $Vector {
                // SAFETY: see the macro.
                unsafe { $mul(a, b) }
            }

            #[inline(always)]
            fn add_lanes(a: $Vector, b: $Vector) -> $Vector {
                // SAFETY: see the macro.
                unsafe { $add(a, b) }
            }

            #[inline(always)]
            fn sub_lanes(a: $Vector, b: $Vector) -> $Vector {
                // SAFETY: see the macro.
                unsafe { $sub(a, b) }
            }

            #[inline(always)]
            fn sum_bytes(bytes: &[[i8; 32]]) -> i32 {
                // SAFETY: see the macro; every set has AVX2.
                unsafe { sum_bytes(bytes) }
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

/// The sum of bytes, of which the instruction sums eight at a time, without a sign.
///
/// By halves, as they are stored: a load of both would wait until both stores are in the cache.
#[inline]
#[target_feature(enable = "avx2")]
fn sum_bytes(bytes: &[[i8; 32]]) -> i32 {
    let (halves, _) = bytes.as_flattened().as_chunks::<16>();
    let mut sums = _mm_setzero_si128();
    for half in halves {
        // SAFETY: a half is as long as the register.
        let bytes = unsafe { _mm_loadu_si128(half.as_ptr().cast()) };
        // 128 more than each integer.
        let bytes = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
        sums = _mm_add_epi64(sums, _mm_sad_epu8(bytes, _mm_setzero_si128()));
    }
    let sum = _mm_add_epi64(sums, _mm_unpackhi_epi64(sums, sums));
    _mm_cvtsi128_si32(sum) - 16 * 128 * halves.len() as i32
}

// 12 accumulators, 2 of B, 1 of a row and the mask are 16 registers.
implement!(
    [] Avx2, __m256, 8 lanes, 6 rows,
    _mm256_fmadd_ps, _mm256_mul_ps, _mm256_add_ps, _mm256_sub_ps, _mm256_max_ps, _mm256_set1_ps,
    _mm256_loadu_ps, _mm256_storeu_ps,
    _mm256_set1_epi32, _mm256_and_si256, _mm256_slli_epi32,
    _mm256_castsi256_ps, _mm256_cvtepi32_ps, _mm_loadu_si128, _mm256_cvtph_ps,
    const SET: InstructionSet = InstructionSet::Avx2;

    #[inline(always)]
    fn exp2_block(numbers: &mut [f32; BLOCK]) {
        exp2_block_by_numbers::<Self>(numbers);
    }

    #[inline(always)]
    fn store_pairs(vector: __m256, pairs: &mut [u32]) {
        store_pairs_by_numbers::<Self>(vector, pairs);
    }

    #[inline(always)]
    fn above(a: __m256, b: __m256) -> u32 {
        // SAFETY: see the macro.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a, b)).cast_unsigned() }
    }

    #[inline(always)]
    fn select_lanes(bits: u32, a: __m256, b: __m256) -> __m256 {
        const LANES: [i32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
        // SAFETY: see the macro; the constant is as long as the register.
        unsafe {
            let lanes = transmute::<[i32; 8], __m256i>(LANES);
            let bits = _mm256_and_si256(_mm256_set1_epi32(bits.cast_signed()), lanes);
            let is_set = _mm256_castsi256_ps(_mm256_cmpeq_epi32(bits, lanes));
            _mm256_blendv_ps(b, a, is_set)
        }
    }

    #[inline(always)]
    fn add_pairs<const DISTANCE: usize>(vector: __m256) -> __m256 {
        // SAFETY: see the macro.
        unsafe {
            let other = match DISTANCE {
                1 => _mm256_permute_ps::<0b10_11_00_01>(vector),
                2 => _mm256_permute_ps::<0b01_00_11_10>(vector),
                _ => _mm256_permute2f128_ps::<1>(vector, vector),
            };
            // Exact products: one rounding, as of a sum or a difference.
            let signs = const { &signs::<DISTANCE, 8>() };
            _mm256_fmadd_ps(vector, _mm256_loadu_ps(signs.as_ptr()), other)
        }
    }

    // As of `bf16::from_f32`: of a loop over a block the compiler makes single numbers.
    #[inline(always)]
    fn round_block(numbers: &[f32; BLOCK], out: &mut [bf16; BLOCK]) {
        Self::store_rounded([Self::load(numbers), Self::load(&numbers[8..])], out);
    }

    #[inline(always)]
    fn store_rounded(registers: [__m256; 2], out: &mut [bf16]) {
        let out = &mut out[..BLOCK];
        // SAFETY: see the macro; a block is one register in bf16.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), round_16(registers)) }
    }
);
implement!(
    [const VNNI: bool, const BF16: bool] Avx512<VNNI, BF16>, __m512, 16 lanes, 12 rows,
    _mm512_fmadd_ps, _mm512_mul_ps, _mm512_add_ps, _mm512_sub_ps, _mm512_max_ps, _mm512_set1_ps,
    _mm512_loadu_ps, _mm512_storeu_ps,
    _mm512_set1_epi32, _mm512_and_si512, _mm512_slli_epi32,
    _mm512_castsi512_ps, _mm512_cvtepi32_ps, _mm256_loadu_si256, _mm512_cvtph_ps,
    const SET: InstructionSet = InstructionSet::avx512(VNNI, BF16);
    const HAS_PAIR_DOT: bool = BF16;

    /// Two instructions and five multiply-adds: `x` less its floor lies in `0..1`, where a polynomial
    /// gives `2^x` within two units in the last place and exactly 1 at 0; the last instruction multiplies by `2^floor(x)`,
    /// subnormal and infinite results included.
    #[inline(always)]
    fn exp2_block(numbers: &mut [f32; BLOCK]) {
        const P: [f32; 5] = [
            1.867_130_2e-3,
            9.017_03e-3,
            5.579_991_3e-2,
            2.401_644_4e-1,
            6.931_513e-1,
        ];
        // SAFETY: see the macro; a block is a register.
        unsafe {
            let x = _mm512_loadu_ps(numbers.as_ptr());
            let r = _mm512_reduce_ps::<_MM_FROUND_TO_NEG_INF>(x);
            let mut p = _mm512_set1_ps(P[0]);
            for next in &P[1..] {
                p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*next));
            }
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0));
            _mm512_storeu_ps(numbers.as_mut_ptr(), _mm512_scalef_ps(p, x));
        }
    }

    #[inline(always)]
    fn add_pairs<const DISTANCE: usize>(vector: __m512) -> __m512 {
        // SAFETY: see the macro.
        unsafe {
            let other = match DISTANCE {
                1 => _mm512_permute_ps::<0b10_11_00_01>(vector),
                2 => _mm512_permute_ps::<0b01_00_11_10>(vector),
                4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(vector, vector),
                _ => _mm512_shuffle_f32x4::<0b01_00_11_10>(vector, vector),
            };
            // Exact products: one rounding, as of a sum or a difference.
            let signs = const { &signs::<DISTANCE, 16>() };
            _mm512_fmadd_ps(vector, _mm512_loadu_ps(signs.as_ptr()), other)
        }
    }

    #[inline(always)]
    fn largest_magnitude(numbers: &[[f32; 32]]) -> f32 {
        // SAFETY: see the macro; an array is two registers.
        unsafe {
            let magnitude = _mm512_set1_epi32(i32::MAX);
            let mut largest = _mm512_setzero_si512();
            for numbers in numbers {
                let first = _mm512_loadu_si512(numbers.as_ptr().cast());
                let second = _mm512_loadu_si512(numbers.as_ptr().add(16).cast());
                largest = _mm512_max_epu32(largest, _mm512_and_si512(first, magnitude));
                largest = _mm512_max_epu32(largest, _mm512_and_si512(second, magnitude));
            }
            f32::from_bits(_mm512_reduce_max_epu32(largest))
        }
    }

    #[inline(always)]
    fn round_to_bytes(numbers: &[f32; 32], factor: f32) -> [i8; 32] {
        // SAFETY: see the macro; the array is two registers of numbers, and half of one as bytes.
        unsafe {
            let (factor, rounder) = (_mm512_set1_ps(factor), _mm512_set1_ps(ROUNDER));
            let bytes = |numbers: *const f32| {
                let scaled = _mm512_mul_ps(_mm512_loadu_ps(numbers), factor);
                _mm512_cvtepi32_epi8(_mm512_castps_si512(_mm512_add_ps(scaled, rounder)))
            };
            let (low, high) = (bytes(numbers.as_ptr()), bytes(numbers.as_ptr().add(16)));
            transmute::<__m256i, [i8; 32]>(_mm256_set_m128i(high, low))
        }
    }

    #[inline(always)]
    fn above(a: __m512, b: __m512) -> u32 {
        // SAFETY: see the macro.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b).into() }
    }

    #[inline(always)]
    fn select_lanes(bits: u32, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see the macro.
        unsafe { _mm512_mask_blend_ps(bits as u16, b, a) }
    }

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
    fn round_block(numbers: &[f32; BLOCK], out: &mut [bf16; BLOCK]) {
        if BF16 {
            // SAFETY: see the macro; a block is a register, and half of one in bf16.
            unsafe {
                let rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(numbers.as_ptr()));
                let words = transmute::<__m256bh, __m256i>(rounded);
                _mm256_storeu_si256(out.as_mut_ptr().cast(), words);
            }
        } else {
            round_block_by_numbers(numbers, out);
        }
    }

    #[inline(always)]
    fn store_rounded(registers: [__m512; 2], out: &mut [bf16]) {
        let out = &mut out[..32];
        // SAFETY: see the macro; the slice is as long as a register.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), round_32(registers)) }
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
