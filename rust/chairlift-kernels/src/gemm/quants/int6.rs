//! Codes of six bits.

use super::{InputWords, IntegerSums, LOW, ONES, Quants, add_bytes};
use crate::{
    gemm::{quantize::GROUP, register_tile::REGISTERS},
    isa::Isa,
    memory::prefetch::opaque,
};

/// Six bits.
pub(crate) struct Int6Quants;

/// Bits 4 and 5 of the bytes of a word.
const UPPER: u32 = 0x3030_3030;

impl Quants for Int6Quants {
    const LINES: usize = 6;

    #[inline(always)]
    fn pack(quants: &[u8; GROUP], column: usize, width: usize, lines: &mut [u32]) {
        for (lines, quants) in lines
            .chunks_exact_mut(3 * width)
            .zip(quants.as_chunks::<16>().0)
        {
            for (place, &code) in quants.iter().enumerate() {
                let (four, byte) = (place / 4, 8 * (place % 4));
                let (low, high) = (u32::from(code & 15), u32::from(code >> 4));
                lines[four / 2 * width + column] |= low << (byte + four % 2 * 4);
                // The first four are where the sum wants them, the next two bits above, the others below.
                lines[2 * width + column] |= high << (byte + (2 * four + 4) % 8);
            }
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
        for (half, lines) in lines.chunks_exact(3 * width).enumerate() {
            let x = x.skip(4 * half);
            if I::HAS_DOT {
                // One word after the other: sums and totals leave few registers.
                for four in 0..4 {
                    let w = six_bits::<I>(opaque(lines), four);
                    add_bytes::<I, R>(&mut sums, x.skip(four), w);
                }
            } else {
                for pair in [0, 2] {
                    // No closure: one that is not inlined is compiled without the instruction set.
                    let w = [six_bits::<I>(lines, pair), six_bits::<I>(lines, pair + 1)];
                    add_pair::<I, R>(&mut sums, x.skip(pair), w);
                }
            }
        }
        sums
    }
}

/// Word `four` of the codes of half a group.
#[inline(always)]
fn six_bits<I: Isa>(lines: &[u32], four: usize) -> [I::Words; REGISTERS] {
    let width = REGISTERS * I::WORDS;
    let (low, upper) = (I::splat_word(LOW), I::splat_word(UPPER));
    let mut quants = [low; REGISTERS];
    for n in 0..REGISTERS {
        let nibbles = I::load_words(&lines[four / 2 * width + n * I::WORDS..]);
        let nibbles = if four.is_multiple_of(2) {
            nibbles
        } else {
            I::shift_right::<4>(nibbles)
        };
        let rest = I::load_words(&lines[2 * width + n * I::WORDS..]);
        let rest = match four {
            0 => rest,
            1 => I::shift_right::<2>(rest),
            2 => I::shift_left::<4>(rest),
            _ => I::shift_left::<2>(rest),
        };
        quants[n] = I::or(I::and(nibbles, low), I::and(rest, upper));
    }
    quants
}

/// Adds the products of two words of six-bit codes, without an instruction for dot products.
#[inline(always)]
fn add_pair<I: Isa, const R: usize>(
    sums: &mut IntegerSums<I, R>,
    x: InputWords<'_>,
    w: [[I::Words; REGISTERS]; 2],
) {
    for r in 0..R {
        let x = [
            I::broadcast_word(x.word(r, 0)),
            I::broadcast_word(x.word(r, 1)),
        ];
        for n in 0..REGISTERS {
            let halves = I::multiply_u8_i8(w[0][n], x[0]);
            let halves = I::multiply_add_u8_i8(halves, w[1][n], x[1]);
            sums[r][n] = I::multiply_add_i16(sums[r][n], halves, I::splat_word(ONES));
        }
    }
}
