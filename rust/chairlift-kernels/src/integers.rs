//! The integer half of an instruction set: registers of 32-bit words, seen as bytes, halves or wholes.
//!
//! Products are exact. `multiply_i16` cannot overflow for what the kernels feed it (bytes), and
//! `multiply_u8_i8`, whose sums of two saturate at 16 bits, is used where one factor has four bits.
//! `add_dot` has no such limits, but is one instruction on some machines only (VNNI).

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

    /// The first `WORDS` words.
    fn load_words(words: &[u32]) -> Self::Words;

    /// Bits that both have.
    fn and(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Each half of a word, shifted right by `BITS`; zeros come in.
    fn shift_right<const BITS: u32>(words: Self::Words) -> Self::Words;

    /// The same words, in a register now.
    ///
    /// The compiler knows that sums of integers may be taken in any order; in the AVX-512 instance of the
    /// tile it computes all products first and spills them. A sum that is pinned is a step of its own.
    /// What that is worth on AVX2 is open: timings on a busy machine went both ways.
    fn pin(words: Self::Words) -> Self::Words;

    /// Sums of words; wraps.
    fn add_i32(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Sums of half words; wraps.
    fn add_i16(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Products of signed half words, the two of a word summed.
    fn multiply_i16(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Products of unsigned bytes of `a` and signed bytes of `b`, the two of a half word summed.
    ///
    /// The sum saturates at 16 bits: callers see to it that it stays within.
    fn multiply_u8_i8(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Whether `add_dot` is one instruction.
    const HAS_DOT: bool = false;

    /// Sums of words and the products of unsigned bytes of `a` and signed bytes of `b`, all four of a
    /// word; wraps.
    #[inline(always)]
    fn add_dot(sums: Self::Words, a: Self::Words, b: Self::Words) -> Self::Words {
        add_dot_by_nibbles::<Self>(sums, a, b)
    }
}

/// [`Integers::add_dot`] by the other operations.
#[inline(always)]
fn add_dot_by_nibbles<I: Integers>(sums: I::Words, a: I::Words, b: I::Words) -> I::Words {
    let nibble = I::splat_word(0x0f0f_0f0f);
    let low = I::multiply_u8_i8(I::and(a, nibble), b);
    let high = I::multiply_u8_i8(I::and(I::shift_right::<4>(a), nibble), b);
    let sums = I::add_i32(sums, I::multiply_i16(low, I::splat_word(0x0001_0001)));
    I::add_i32(sums, I::multiply_i16(high, I::splat_word(0x0010_0010)))
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
    fn pin(words: [u32; 8]) -> [u32; 8] {
        words
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
    use super::{Integers, add_dot_by_nibbles};
    use crate::isa::{Avx2, Avx512};
    use std::arch::asm;
    use std::arch::x86_64::{
        __m256i, __m512i, _mm_cvtsi32_si128, _mm256_add_epi16, _mm256_add_epi32, _mm256_and_si256,
        _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi32,
        _mm256_srl_epi16, _mm512_add_epi16, _mm512_add_epi32, _mm512_and_si512,
        _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_madd_epi16, _mm512_maddubs_epi16,
        _mm512_set1_epi32, _mm512_srl_epi16,
    };

    /// Implements [`Integers`] by intrinsics; SAFETY of its blocks as in `isa`.
    macro_rules! implement {
        (
            [$($parameters:tt)*] $Set:ty, $Words:ty, $lanes:literal lanes, $rows:expr, rows,
            $set1:ident, $loadu:ident, $and:ident, $shift:ident, $add32:ident, $add16:ident,
            $madd:ident, $maddubs:ident, $pin:ident,
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
                fn pin(words: $Words) -> $Words {
                    // SAFETY: see the macro.
                    unsafe { $pin(words) }
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

    #[inline]
    #[target_feature(enable = "avx2")]
    fn pin_ymm(words: __m256i) -> __m256i {
        let mut words = words;
        // SAFETY: no instruction at all.
        unsafe {
            asm!("/* {0} */", inout(ymm_reg) words, options(pure, nomem, nostack, preserves_flags));
        }
        words
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn pin_zmm(words: __m512i) -> __m512i {
        let mut words = words;
        // SAFETY: no instruction at all.
        unsafe {
            asm!("/* {0} */", inout(zmm_reg) words, options(pure, nomem, nostack, preserves_flags));
        }
        words
    }

    // 12 accumulators, 2 of weights, 1 of a row and the mask are 16 registers.
    implement!(
        [] Avx2, __m256i, 8 lanes, 6, rows,
        _mm256_set1_epi32, _mm256_loadu_si256, _mm256_and_si256, _mm256_srl_epi16,
        _mm256_add_epi32, _mm256_add_epi16, _mm256_madd_epi16, _mm256_maddubs_epi16, pin_ymm,
    );
    // With dot products 28 accumulators, 2 of weights and 1 of a row are 31 registers of 32.
    implement!(
        [const VNNI: bool, const BF16: bool] Avx512<VNNI, BF16>,
        __m512i, 16 lanes, if VNNI { 14 } else { 8 }, rows,
        _mm512_set1_epi32, _mm512_loadu_si512, _mm512_and_si512, _mm512_srl_epi16,
        _mm512_add_epi32, _mm512_add_epi16, _mm512_madd_epi16, _mm512_maddubs_epi16, pin_zmm,
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
                    I::add_dot(a, b, a),
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
                            let place = ((start + lane) * 8 + index) * 2 + half;
                            (place as u32) << 24 ^ (*number as u32)
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
