//! The integer half of an instruction set: registers of 32-bit words, seen as bytes, halves or wholes.
//!
//! Products are exact. `multiply_i16` cannot overflow for what the kernels feed it (bytes), and
//! `multiply_u8_i8`, whose sums of two saturate at 16 bits, is used where one factor has at most six bits.
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

    /// A word of memory in every lane. Apart from [`Self::splat_word`], because neighbouring words that
    /// the compiler may load together come apart again one by one, over general registers.
    fn broadcast_word(word: &u32) -> Self::Words;

    /// The first `WORDS` words.
    fn load_words(words: &[u32]) -> Self::Words;

    /// The signed bytes of the first `WORDS / 4` words, widened.
    fn widen_bytes(words: &[u32]) -> Self::Words;

    /// Bits that either has.
    fn or(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Each half of a word, shifted left by `BITS`; zeros come in.
    fn shift_left<const BITS: u32>(words: Self::Words) -> Self::Words;

    /// Bits that both have.
    fn and(a: Self::Words, b: Self::Words) -> Self::Words;

    /// Each half of a word, shifted right by `BITS`; zeros come in.
    fn shift_right<const BITS: u32>(words: Self::Words) -> Self::Words;

    /// The byte of a table that each byte of the words names, which is less than 16.
    fn lookup(table: &[u8; 16], places: Self::Words) -> Self::Words;

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

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests {
    use crate::isa::dispatch::{Kernel, dispatch};
    use crate::isa::{Isa, Portable};
    use crate::sampling::philox::philox4x32;

    /// Any bytes.
    const TABLE: [u8; 16] = [7, 0, 255, 3, 128, 9, 77, 1, 254, 4, 200, 31, 64, 15, 16, 90];

    struct All([u32; 16], [u32; 16]);

    impl Kernel for All {
        type Output = Vec<u64>;

        const USES_DOT: bool = true;

        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<u64> {
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
                    I::shift_left::<2>(a),
                    I::or(a, b),
                    I::widen_bytes(&self.0[start / 4..]),
                    I::add_i32(a, b),
                    I::add_i16(a, b),
                    I::multiply_i16(a, b),
                    I::multiply_u8_i8(a, b),
                    I::multiply_u8_i8(nibbles, b),
                    I::add_dot(a, b, a),
                    I::multiply_add_i16(b, a, b),
                    I::multiply_add_u8_i8(a, nibbles, b),
                    I::lookup(&TABLE, nibbles),
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
                            let place = ((start + lane) * 14 + index) * 2 + half;
                            (place as u64) << 32 | u64::from(*number as u32)
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
