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
        // No loops: the compiler left them as they are on some sets, with branches for each word.
        let (first, second) = lines.split_at(3 * REGISTERS * I::WORDS);
        let sums = add_half::<I, R>(sums, x, first);
        if second.is_empty() {
            return sums;
        }
        add_half::<I, R>(sums, x.skip(4), second)
    }
}

/// Adds the products of half a group.
#[inline(always)]
fn add_half<I: Isa, const R: usize>(
    sums: IntegerSums<I, R>,
    x: InputWords<'_>,
    lines: &[u32],
) -> IntegerSums<I, R> {
    let mut sums = sums;
    if I::HAS_DOT {
        // One word after the other: sums and totals leave few registers.
        add_bytes::<I, R>(&mut sums, x, six_bits::<I, 0>(opaque(lines)));
        add_bytes::<I, R>(&mut sums, x.skip(1), six_bits::<I, 1>(opaque(lines)));
        add_bytes::<I, R>(&mut sums, x.skip(2), six_bits::<I, 2>(opaque(lines)));
        add_bytes::<I, R>(&mut sums, x.skip(3), six_bits::<I, 3>(opaque(lines)));
    } else {
        let w = [six_bits::<I, 0>(lines), six_bits::<I, 1>(lines)];
        add_pair::<I, R>(&mut sums, x, w);
        let w = [six_bits::<I, 2>(lines), six_bits::<I, 3>(lines)];
        add_pair::<I, R>(&mut sums, x.skip(2), w);
    }
    sums
}

/// Word `FOUR` of the codes of half a group.
#[inline(always)]
fn six_bits<I: Isa, const FOUR: usize>(lines: &[u32]) -> [I::Words; REGISTERS] {
    let width = REGISTERS * I::WORDS;
    let (low, upper) = (I::splat_word(LOW), I::splat_word(UPPER));
    let mut quants = [low; REGISTERS];
    for n in 0..REGISTERS {
        let nibbles = I::load_words(&lines[FOUR / 2 * width + n * I::WORDS..]);
        let nibbles = if FOUR.is_multiple_of(2) {
            nibbles
        } else {
            I::shift_right::<4>(nibbles)
        };
        let rest = I::load_words(&lines[2 * width + n * I::WORDS..]);
        let rest = match FOUR {
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
