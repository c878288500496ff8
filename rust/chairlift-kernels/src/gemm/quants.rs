//! Codes of weights in packed panels, and their products with the integers of inputs.
//!
//! ```text
//!   Nibbles   four lines: a word holds codes 0 to 3 of eight k in its low nibbles, 4 to 7 in its high ones
//!   Floats    the same of places in a table of codes, which stand for the floats of four bits
//!   Sixes     three lines for each half: two of nibbles, and one whose word holds the upper two bits of 16 k
//!   Bytes     eight lines: a word holds the codes of four k
//! ```
//!
//! Codes are the unsigned factor of a product, inputs the signed one; a sum of products over a group is exact.
//! Where a machine sums four products of bytes by one instruction ([`HAS_DOT`](crate::isa::integers::Integers)),
//! sums have 32 bits from the start. Elsewhere:
//!
//! - a pair of products of nibbles is at most 2 * 15 * 127, and half the products of a group fit 16 bits, in
//!   which they are summed;
//! - codes of floats are up to 24, but 12 less of each in their sums, which fit then; they may wrap on the way;
//! - a pair of products of six bits is at most 2 * 63 * 127, and two of them fit 16 bits;
//! - bytes are split into 16-bit halves, whose products are exact in 32 bits.

mod fp4;
mod int6;

pub(crate) use fp4::{FLOAT_OFFSET, FLOATS};
pub(crate) use int6::Int6Quants;

use crate::{
    gemm::{
        quantize::{GROUP, sum},
        register_tile::REGISTERS,
    },
    isa::Isa,
    memory::prefetch::opaque,
};

/// Sums of a tile, as integers.
pub(crate) type IntegerSums<I, const R: usize> =
    [[<I as crate::isa::integers::Integers>::Words; REGISTERS]; R];

/// Words of the inputs of a group, or of a part of it; those of a row lie side by side.
#[derive(Clone, Copy)]
pub(crate) struct InputWords<'a> {
    words: &'a [u32],
    /// The first word of the first row.
    first: usize,
    /// From a row to the next.
    stride: usize,
}

impl<'a> InputWords<'a> {
    #[inline(always)]
    pub(crate) fn new(words: &'a [u32], stride: usize) -> Self {
        Self {
            words,
            first: 0,
            stride,
        }
    }

    /// Skips the first `words` words of each row.
    #[inline(always)]
    pub(crate) fn skip(self, words: usize) -> Self {
        Self {
            first: self.first + words,
            ..self
        }
    }

    #[inline(always)]
    pub(crate) fn word(self, row: usize, place: usize) -> &'a u32 {
        &self.words[row * self.stride + self.first + place]
    }
}

/// How the codes of a group lie in words.
pub(crate) trait Quants: Sync {
    /// Words of a group of weights, for each output.
    const LINES: usize;

    /// Whether the sums of a group may start with those of another group.
    #[inline(always)]
    fn continues<I: Isa>() -> bool {
        true
    }

    /// Words of a group of inputs.
    #[inline(always)]
    fn input_words<I: Isa>() -> usize {
        GROUP / 4
    }

    /// Packs the codes of a group into column `column` of zeroed lines of `width` words.
    fn pack(quants: &[u8; GROUP], column: usize, width: usize, lines: &mut [u32]);

    /// Packs the integers of a group of inputs into [`Self::input_words`].
    #[inline(always)]
    fn pack_inputs<I: Isa>(integers: &[i8; GROUP], words: &mut [u32]) {
        copy(integers, words);
    }

    /// What the sums of a row start with: less an offset of each code, as of the integers of its inputs.
    #[inline(always)]
    fn start<I: Isa>(offset: i32, integers: &[i8]) -> u32 {
        start_of_words::<I>(offset, integers)
    }

    /// Adds the products of a group, or of a part of it, to the sums of R rows.
    fn add<I: Isa, const R: usize>(
        sums: IntegerSums<I, R>,
        x: InputWords<'_>,
        lines: &[u32],
    ) -> IntegerSums<I, R>;
}

/// Four bits: codes, or the places of codes in [`FLOATS`].
pub(crate) struct FourBits<const ARE_FLOATS: bool>;

pub(crate) type Int4Quants = FourBits<false>;
pub(crate) type Fp4Quants = FourBits<true>;

/// The four nibbles that a mask leaves.
const LOW: u32 = 0x0f0f_0f0f;
/// 1 in both halves.
const ONES: u32 = 0x0001_0001;

impl<const ARE_FLOATS: bool> Quants for FourBits<ARE_FLOATS> {
    const LINES: usize = GROUP / 8;

    // Without dot products they start with sums of 16 bits, and become others of 32 bits.
    #[inline(always)]
    fn continues<I: Isa>() -> bool {
        I::HAS_DOT
    }

    #[inline(always)]
    fn pack(quants: &[u8; GROUP], column: usize, width: usize, lines: &mut [u32]) {
        for (line, quants) in lines.chunks_exact_mut(width).zip(quants.as_chunks::<8>().0) {
            for (place, &code) in quants.iter().enumerate() {
                let code = if ARE_FLOATS {
                    fp4::PLACES[usize::from(code)]
                } else {
                    code
                };
                line[column] |= u32::from(code) << (8 * (place % 4) + 4 * (place / 4));
            }
        }
    }

    #[inline(always)]
    fn start<I: Isa>(offset: i32, integers: &[i8]) -> u32 {
        let start = -offset * sum::<I>(integers);
        if I::HAS_DOT {
            return start.cast_unsigned();
        }
        // Of two sums of 16 bits one has all of it: it is at most 8 * 32 * 127.
        let mut high = 0;
        if ARE_FLOATS {
            // Each has that of the integers which are multiplied for it: at most 12 * 16 * 127.
            for four in integers.as_chunks::<4>().0 {
                high -= offset * sum::<I>(&four[2..]);
            }
        }
        (start - high).cast_unsigned() & 0xffff | high.cast_unsigned() << 16
    }

    #[inline(always)]
    fn add<I: Isa, const R: usize>(
        sums: IntegerSums<I, R>,
        x: InputWords<'_>,
        lines: &[u32],
    ) -> IntegerSums<I, R> {
        let mut sums = sums;
        let low = I::splat_word(LOW);
        for (j, line) in lines.chunks_exact(REGISTERS * I::WORDS).enumerate() {
            let mut w = [low; REGISTERS];
            for n in 0..REGISTERS {
                w[n] = I::and(I::load_words(&line[n * I::WORDS..]), low);
                if ARE_FLOATS {
                    w[n] = I::lookup(&FLOATS, w[n]);
                }
            }
            add_bytes::<I, R>(&mut sums, x.skip(2 * j), w);
            let line = opaque(line);
            for n in 0..REGISTERS {
                w[n] = I::and(
                    I::shift_right::<4>(I::load_words(&line[n * I::WORDS..])),
                    low,
                );
                if ARE_FLOATS {
                    w[n] = I::lookup(&FLOATS, w[n]);
                }
            }
            add_bytes::<I, R>(&mut sums, x.skip(2 * j + 1), w);
        }
        if !I::HAS_DOT {
            for r in 0..R {
                for n in 0..REGISTERS {
                    sums[r][n] = I::multiply_i16(sums[r][n], I::splat_word(ONES));
                }
            }
        }
        sums
    }
}

/// Eight bits.
pub(crate) struct Int8Quants;

/// A mask that leaves two bytes of a word; read from memory each time, it takes no register for long.
static EVEN: [u32; 16] = [0x00ff_00ff; 16];

impl Quants for Int8Quants {
    const LINES: usize = GROUP / 4;

    #[inline(always)]
    fn input_words<I: Isa>() -> usize {
        if I::HAS_DOT { GROUP / 4 } else { GROUP / 2 }
    }

    #[inline(always)]
    fn pack(quants: &[u8; GROUP], column: usize, width: usize, lines: &mut [u32]) {
        for (line, four) in lines.chunks_exact_mut(width).zip(quants.as_chunks().0) {
            line[column] = u32::from_le_bytes(*four);
        }
    }

    #[inline(always)]
    fn pack_inputs<I: Isa>(integers: &[i8; GROUP], words: &mut [u32]) {
        if I::HAS_DOT {
            copy(integers, words);
            return;
        }
        let fours = integers.as_chunks().0;
        for (words, [a, b, c, d]) in words.as_chunks_mut::<2>().0.iter_mut().zip(fours) {
            *words = [halves(*a, *c), halves(*b, *d)];
        }
    }

    #[inline(always)]
    fn add<I: Isa, const R: usize>(
        sums: IntegerSums<I, R>,
        x: InputWords<'_>,
        lines: &[u32],
    ) -> IntegerSums<I, R> {
        let width = REGISTERS * I::WORDS;
        let mut sums = sums;
        for (j, line) in lines.chunks_exact(width).enumerate() {
            if I::HAS_DOT {
                let mut w = [I::splat_word(0); REGISTERS];
                for n in 0..REGISTERS {
                    w[n] = I::load_words(&line[n * I::WORDS..]);
                }
                add_bytes::<I, R>(&mut sums, x.skip(j), w);
                continue;
            }
            let even = I::load_words(opaque(&EVEN));
            let mut w = [even; REGISTERS];
            for n in 0..REGISTERS {
                w[n] = I::and(I::load_words(&line[n * I::WORDS..]), even);
            }
            add_halves::<I, R>(&mut sums, x.skip(2 * j), w);
            let line = opaque(line);
            for n in 0..REGISTERS {
                w[n] = I::shift_right::<8>(I::load_words(&line[n * I::WORDS..]));
            }
            add_halves::<I, R>(&mut sums, x.skip(2 * j + 1), w);
        }
        sums
    }
}

/// What sums of 32 bits start with: less an offset of each code, as of the integers of their inputs.
#[inline(always)]
pub(crate) fn start_of_words<I: Isa>(offset: i32, integers: &[i8]) -> u32 {
    (-offset * sum::<I>(integers)).cast_unsigned()
}

/// The integers as bytes of `words`.
///
/// By halves, as they were stored: a load of both would wait until both stores are in the cache. The compiler must not
/// make one of two.
#[inline(always)]
fn copy(integers: &[i8; GROUP], words: &mut [u32]) {
    const HALF: usize = GROUP / 2;
    for (half, words) in words[..GROUP / 4].chunks_exact_mut(HALF / 4).enumerate() {
        let integers = opaque(&integers[half * HALF..(half + 1) * HALF]);
        let packed: [u32; HALF / 4] = bytemuck::pod_read_unaligned(bytemuck::cast_slice(integers));
        words.copy_from_slice(&packed.map(u32::from_le));
    }
}

/// The starts of R rows, or zero.
#[inline(always)]
pub(crate) fn started<I: Isa, const R: usize>(starts: Option<InputWords<'_>>) -> IntegerSums<I, R> {
    let mut sums = [[I::splat_word(0); REGISTERS]; R];
    if let Some(starts) = starts {
        for r in 0..R {
            sums[r] = [I::broadcast_word(starts.word(r, 0)); REGISTERS];
        }
    }
    sums
}

/// Both halves of a word.
#[inline(always)]
fn halves(low: i8, high: i8) -> u32 {
    let half = |byte: i8| u32::from(i16::from(byte).cast_unsigned());
    half(low) | half(high) << 16
}

#[inline(always)]
fn add_bytes<I: Isa, const R: usize>(
    sums: &mut IntegerSums<I, R>,
    x: InputWords<'_>,
    w: [I::Words; REGISTERS],
) {
    for r in 0..R {
        let x = I::broadcast_word(x.word(r, 0));
        for n in 0..REGISTERS {
            sums[r][n] = if I::HAS_DOT {
                I::add_dot(sums[r][n], w[n], x)
            } else {
                I::multiply_add_u8_i8(sums[r][n], w[n], x)
            };
        }
    }
}

#[inline(always)]
fn add_halves<I: Isa, const R: usize>(
    sums: &mut IntegerSums<I, R>,
    x: InputWords<'_>,
    w: [I::Words; REGISTERS],
) {
    for r in 0..R {
        let x = I::broadcast_word(x.word(r, 0));
        for n in 0..REGISTERS {
            sums[r][n] = I::multiply_add_i16(sums[r][n], w[n], x);
        }
    }
}
