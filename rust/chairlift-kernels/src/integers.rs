//! The integer half of an instruction set: registers of 32-bit words, seen as bytes, halves or wholes.
//!
//! Products are exact. `multiply_i16` cannot overflow for what the kernels feed it (bytes), and
//! `multiply_u8_i8`, whose sums of two saturate at 16 bits, is used where one factor has four bits.

/// Operations on a register of 32-bit words.
pub trait Integers: Copy {
    /// A register.
    type Words: Copy;

    /// Words in a register.
    const WORDS: usize;

    /// Rows of an integer tile at most, such that two registers per row, and what feeds them, fit.
    const INTEGER_ROWS: usize;

    /// One word in every lane.
    fn splat_word(word: u32) -> Self::Words;

    /// A word of memory in every lane. Apart from [`Self::splat_word`], because neighbouring words that
    /// the compiler may load together come apart again one by one, over general registers.
    fn broadcast_word(word: &u32) -> Self::Words;

    /// The first `WORDS` words.
    fn load_words(words: &[u32]) -> Self::Words;

    /// Bits that both have.
    fn and(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Each half of a word, shifted right by `BITS`; zeros come in.
    fn shift_right<const BITS: u32>(words: Self::Words) -> Self::Words;

    /// Sums of words; wraps.
    fn add_i32(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Sums of half words; wraps.
    fn add_i16(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Products of signed half words, the two of a word summed.
    fn multiply_i16(a: Self::Words, b: Self::Words) -> Self::Words;

    /// [`Self::add_i32`] of a sum and [`Self::multiply_i16`].
    ///
    /// One step for the compiler, which knows that sums of integers may be taken in any order: it would
    /// compute many products first and push the sums of a tile out of their registers.
    fn multiply_add_i16(sum: Self::Words, a: Self::Words, b: Self::Words) -> Self::Words;

    /// [`Self::add_i16`] of a sum and [`Self::multiply_u8_i8`], in one step too.
    fn multiply_add_u8_i8(sum: Self::Words, a: Self::Words, b: Self::Words) -> Self::Words;

    /// Products of unsigned bytes of `a` and signed bytes of `b`, the two of a half word summed.
    ///
    /// The sum saturates at 16 bits: callers see to it that it stays within.
    fn multiply_u8_i8(a: Self::Words, b: Self::Words) -> Self::Words;
}

impl Integers for super::isa::Portable {
    type Words = [u32; 8];

    const WORDS: usize = 8;
    const INTEGER_ROWS: usize = 2;

    #[inline(always)]
    fn splat_word(word: u32) -> [u32; 8] {
        [word; 8]
    }

    #[inline(always)]
    fn broadcast_word(word: &u32) -> [u32; 8] {
        [*word; 8]
    }

    #[inline(always)]
    fn load_words(words: &[u32]) -> [u32; 8] {
        *words.first_chunk().expect("a register of words")
    }

    #[inline(always)]
    fn and(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        by_lane(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(words: [u32; 8]) -> [u32; 8] {
        let kept = (0xffff_u32 >> BITS) * 0x0001_0001;
        by_lane(words, words, |word, _| (word >> BITS) & kept)
    }

    #[inline(always)]
    fn multiply_add_i16(sum: [u32; 8], a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        Self::add_i32(sum, Self::multiply_i16(a, b))
    }

    #[inline(always)]
    fn multiply_add_u8_i8(sum: [u32; 8], a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        Self::add_i16(sum, Self::multiply_u8_i8(a, b))
    }

    #[inline(always)]
    fn add_i32(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        by_lane(a, b, u32::wrapping_add)
    }

    #[inline(always)]
    fn add_i16(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        by_lane(a, b, |a, b| {
            let low = a.wrapping_add(b) & 0xffff;
            let high = (a >> 16).wrapping_add(b >> 16) << 16;
            high | low
        })
    }

    #[inline(always)]
    fn multiply_i16(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        by_lane(a, b, |a, b| {
            let low = i32::from(a as i16) * i32::from(b as i16);
            let high = i32::from((a >> 16) as i16) * i32::from((b >> 16) as i16);
            low.wrapping_add(high).cast_unsigned()
        })
    }

    #[inline(always)]
    fn multiply_u8_i8(a: [u32; 8], b: [u32; 8]) -> [u32; 8] {
        by_lane(a, b, |a, b| {
            let product =
                |shift: u32| i32::from((a >> shift) as u8) * i32::from((b >> shift) as u8 as i8);
            let half = |shift: u32| {
                let sum = product(shift) + product(shift + 8);
                let held = sum.clamp(i32::from(i16::MIN), i32::from(i16::MAX));
                held.cast_unsigned() & 0xffff
            };
            half(16) << 16 | half(0)
        })
    }
}

#[inline(always)]
fn by_lane(a: [u32; 8], b: [u32; 8], operation: impl Fn(u32, u32) -> u32) -> [u32; 8] {
    let mut result = [0; 8];
    for lane in 0..8 {
        result[lane] = operation(a[lane], b[lane]);
    }
    result
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Integers;
    use crate::isa::{Avx2, Avx512};
    use std::arch::asm;
    use std::arch::x86_64::{
        __m256i, __m512i, _mm_cvtsi32_si128, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256,
        _mm256_castps_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
        _mm256_set1_epi32, _mm256_set1_ps, _mm256_srl_epi16, _mm512_add_epi16, _mm512_add_epi32,
        _mm512_and_si512, _mm512_castps_si512, _mm512_loadu_si512, _mm512_madd_epi16,
        _mm512_maddubs_epi16, _mm512_set1_epi32, _mm512_set1_ps, _mm512_srl_epi16,
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
            $Set:ident, $Words:ty, $lanes:literal lanes, $rows:literal rows,
            $set1:ident, $loadu:ident, $and:ident, $shift:ident, $add32:ident, $add16:ident,
            $madd:ident, $maddubs:ident, $multiply_add_i16:ident, $multiply_add_u8_i8:ident, $set1_number:ident, $cast:ident
        ) => {
            impl Integers for $Set {
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
            }
        };
    }

    // 10 accumulators, 2 of weights, 1 of a row and a product; with 12 the compiler spills some.
    implement!(
        Avx2, __m256i, 8 lanes, 5 rows,
        _mm256_set1_epi32, _mm256_loadu_si256, _mm256_and_si256, _mm256_srl_epi16,
        _mm256_add_epi32, _mm256_add_epi16, _mm256_madd_epi16, _mm256_maddubs_epi16, i16_ymm,
        u8_i8_ymm, _mm256_set1_ps, _mm256_castps_si256
    );
    implement!(
        Avx512, __m512i, 16 lanes, 8 rows,
        _mm512_set1_epi32, _mm512_loadu_si512, _mm512_and_si512, _mm512_srl_epi16,
        _mm512_add_epi32, _mm512_add_epi16, _mm512_madd_epi16, _mm512_maddubs_epi16, i16_zmm,
        u8_i8_zmm, _mm512_set1_ps, _mm512_castps_si512
    );
}

#[cfg(test)]
mod tests {
    use crate::dispatch::{Kernel, dispatch};
    use crate::isa::{Isa, Portable};
    use crate::philox::philox4x32;

    struct All([u32; 16], [u32; 16]);

    impl Kernel for All {
        type Output = Vec<u32>;

        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<u32> {
            let mut out = Vec::new();
            for start in (0..16).step_by(I::WORDS) {
                let (a, b) = (
                    I::load_words(&self.0[start..]),
                    I::load_words(&self.1[start..]),
                );
                let nibbles = I::and(a, I::splat_word(0x0f0f_0f0f));
                let results = [
                    I::shift_right::<4>(a),
                    I::shift_right::<8>(a),
                    I::add_i32(a, b),
                    I::add_i16(a, b),
                    I::multiply_i16(a, b),
                    I::multiply_u8_i8(a, b),
                    I::multiply_u8_i8(nibbles, b),
                    I::multiply_add_i16(b, a, b),
                    I::multiply_add_u8_i8(a, nibbles, b),
                ];
                for (index, words) in results.into_iter().enumerate() {
                    let mut numbers = [0.0; 16];
                    for (half, words) in [words, I::shift_right::<8>(words)].into_iter().enumerate()
                    {
                        let part = I::and(words, I::splat_word(0x00ff_00ff));
                        I::store(I::convert(part), &mut numbers);
                        let lanes = numbers[..I::WORDS].iter().enumerate();
                        out.extend(lanes.map(|(lane, number)| {
                            // Sorted by place below, whatever the width of the registers.
                            let place = ((start + lane) * 9 + index) * 2 + half;
                            (place as u32) << 22 ^ (*number as u32)
                        }));
                    }
                }
            }
            out.sort_unstable();
            out
        }
    }

    #[test]
    fn every_set_computes_what_portable_code_does() {
        for seed in 0..200 {
            let words = |stream: u32| {
                let mut words = [0; 16];
                for (index, four) in words.chunks_mut(4).enumerate() {
                    four.copy_from_slice(&philox4x32([seed, index as u32, stream, 0], [3, 4]));
                }
                words
            };
            let (a, b) = (words(0), words(1));
            assert_eq!(dispatch(All(a, b)), All(a, b).run::<Portable>());
        }
    }
}
