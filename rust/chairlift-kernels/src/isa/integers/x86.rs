//! Integers in the registers of x86-64.

use super::{Integers, add_dot_by_nibbles};
use crate::isa::{Avx2, Avx512};
use std::arch::asm;
use std::arch::x86_64::{
    __m256i, __m512i, _mm_cvtsi32_si128, _mm_loadl_epi64, _mm_loadu_si128, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_castps_si256,
    _mm256_cvtepi8_epi32, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_or_si256, _mm256_set1_epi32, _mm256_set1_ps, _mm256_shuffle_epi8, _mm256_sll_epi16,
    _mm256_srl_epi16, _mm512_add_epi16, _mm512_add_epi32, _mm512_and_si512, _mm512_broadcast_i32x4,
    _mm512_castps_si512, _mm512_cvtepi8_epi32, _mm512_dpbusd_epi32, _mm512_loadu_si512,
    _mm512_madd_epi16, _mm512_maddubs_epi16, _mm512_or_si512, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_shuffle_epi8, _mm512_sll_epi16, _mm512_srl_epi16,
};

/// A function that adds a product to a sum.
macro_rules! two_steps {
    ($name:ident, $Words:ty, $feature:literal, $register:ident, $multiply:literal, $add:literal) => {
        #[inline]
        #[target_feature(enable = $feature)]
        fn $name(sum: $Words, a: $Words, b: $Words) -> $Words {
            let mut sum = sum;
            // It has a type, and so a name in full, only as a variable.
            let _product: $Words;
            // SAFETY: the instructions touch these registers alone.
            unsafe {
                asm!(
                    concat!($multiply, " {product}, {a}, {b}"),
                    concat!($add, " {sum}, {sum}, {product}"),
                    product = lateout($register) _product,
                    sum = inout($register) sum,
                    a = in($register) a,
                    b = in($register) b,
                    options(pure, nomem, nostack, preserves_flags)
                );
            }
            sum
        }
    };
}

two_steps!(i16_ymm, __m256i, "avx2", ymm_reg, "vpmaddwd", "vpaddd");
two_steps!(u8_i8_ymm, __m256i, "avx2", ymm_reg, "vpmaddubsw", "vpaddw");
two_steps!(
    i16_zmm,
    __m512i,
    "avx512f,avx512bw",
    zmm_reg,
    "vpmaddwd",
    "vpaddd"
);
two_steps!(
    u8_i8_zmm,
    __m512i,
    "avx512f,avx512bw",
    zmm_reg,
    "vpmaddubsw",
    "vpaddw"
);

/// Implements [`Integers`] by intrinsics; SAFETY of its blocks as in `isa`.
macro_rules! implement {
    (
        [$($parameters:tt)*] $Set:ty, $Words:ty, $lanes:literal lanes, rows = $rows:expr,
        $set1:ident, $loadu:ident, $load_bytes:ident, $widen:ident, $and:ident, $or:ident,
        $shift:ident, $shift_left:ident, $add32:ident, $add16:ident,
        $madd:ident, $maddubs:ident, $multiply_add_i16:ident, $multiply_add_u8_i8:ident,
        $set1_number:ident, $cast:ident, $repeat:ident, $shuffle:ident,
        $($more:item)*
    ) => {
        impl<$($parameters)*> Integers for $Set {
            type Words = $Words;

            const WORDS: usize = $lanes;
            const INTEGER_ROWS: usize = $rows;

            #[inline(always)]
            fn splat_word(word: u32) -> $Words {
                // SAFETY: see the macro.
                unsafe { $set1(word.cast_signed()) }
            }

            #[inline(always)]
            fn broadcast_word(word: &u32) -> $Words {
                // SAFETY: see the macro. A word of four bytes may be read as a number.
                unsafe { $cast($set1_number(*std::ptr::from_ref(word).cast::<f32>())) }
            }

            #[inline(always)]
            fn load_words(words: &[u32]) -> $Words {
                let words = &words[..$lanes];
                // SAFETY: see the macro; the slice is as long as the register.
                unsafe { $loadu(words.as_ptr().cast()) }
            }

            #[inline(always)]
            fn widen_bytes(words: &[u32]) -> $Words {
                let words = &words[..$lanes / 4];
                // SAFETY: see the macro; the slice is a quarter of the register.
                unsafe { $widen($load_bytes(words.as_ptr().cast())) }
            }

            #[inline(always)]
            fn or(a: $Words, b: $Words) -> $Words {
                // SAFETY: see the macro.
                unsafe { $or(a, b) }
            }

            #[inline(always)]
            fn shift_left<const BITS: u32>(words: $Words) -> $Words {
                // SAFETY: see `shift_right`.
                unsafe { $shift_left(words, _mm_cvtsi32_si128(BITS as i32)) }
            }

            #[inline(always)]
            fn and(a: $Words, b: $Words) -> $Words {
                // SAFETY: see the macro.
                unsafe { $and(a, b) }
            }

            #[inline(always)]
            fn shift_right<const BITS: u32>(words: $Words) -> $Words {
                // SAFETY: see the macro. The count is a constant: the compiler takes the
                // instruction that has it inside.
                unsafe { $shift(words, _mm_cvtsi32_si128(BITS as i32)) }
            }

            #[inline(always)]
            fn lookup(table: &[u8; 16], places: $Words) -> $Words {
                // SAFETY: see the macro; the table is 16 bytes long.
                unsafe { $shuffle($repeat(_mm_loadu_si128(table.as_ptr().cast())), places) }
            }

            #[inline(always)]
            fn multiply_add_i16(sum: $Words, a: $Words, b: $Words) -> $Words {
                // SAFETY: see the macro.
                unsafe { $multiply_add_i16(sum, a, b) }
            }

            #[inline(always)]
            fn multiply_add_u8_i8(sum: $Words, a: $Words, b: $Words) -> $Words {
                // SAFETY: see the macro.
                unsafe { $multiply_add_u8_i8(sum, a, b) }
            }

            #[inline(always)]
            fn add_i32(a: $Words, b: $Words) -> $Words {
                // SAFETY: see the macro.
                unsafe { $add32(a, b) }
            }

            #[inline(always)]
            fn add_i16(a: $Words, b: $Words) -> $Words {
                // SAFETY: see the macro.
                unsafe { $add16(a, b) }
            }

            #[inline(always)]
            fn multiply_i16(a: $Words, b: $Words) -> $Words {
                // SAFETY: see the macro.
                unsafe { $madd(a, b) }
            }

            #[inline(always)]
            fn multiply_u8_i8(a: $Words, b: $Words) -> $Words {
                // SAFETY: see the macro.
                unsafe { $maddubs(a, b) }
            }

            $($more)*
        }
    };
}

// 8 accumulators, 2 of weights, 1 of a row and a product; with 10 the compiler spills some.
implement!(
    [] Avx2, __m256i, 8 lanes, rows = 4,
    _mm256_set1_epi32, _mm256_loadu_si256, _mm_loadl_epi64, _mm256_cvtepi8_epi32,
    _mm256_and_si256, _mm256_or_si256, _mm256_srl_epi16, _mm256_sll_epi16,
    _mm256_add_epi32, _mm256_add_epi16, _mm256_madd_epi16, _mm256_maddubs_epi16, i16_ymm,
    u8_i8_ymm, _mm256_set1_ps, _mm256_castps_si256, _mm256_broadcastsi128_si256,
    _mm256_shuffle_epi8,
);
// 12 accumulators and 12 totals are in registers side by side.
implement!(
    [const VNNI: bool, const BF16: bool] Avx512<VNNI, BF16>,
    __m512i, 16 lanes, rows = 6,
    _mm512_set1_epi32, _mm512_loadu_si512, _mm_loadu_si128, _mm512_cvtepi8_epi32,
    _mm512_and_si512, _mm512_or_si512, _mm512_srl_epi16, _mm512_sll_epi16,
    _mm512_add_epi32, _mm512_add_epi16, _mm512_madd_epi16, _mm512_maddubs_epi16, i16_zmm,
    u8_i8_zmm, _mm512_set1_ps, _mm512_castps_si512, _mm512_broadcast_i32x4, _mm512_shuffle_epi8,
    const HAS_DOT: bool = VNNI;

    #[inline(always)]
    fn add_dot(sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if VNNI {
            // SAFETY: see the macro.
            unsafe { _mm512_dpbusd_epi32(sums, a, b) }
        } else {
            add_dot_by_nibbles::<Self>(sums, a, b)
        }
    }
);
