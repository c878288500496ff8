//! Four-bit weights in groups of 32 with a scale each; inputs in eight bits, one scale per row.
//!
//! ```text
//!   a group of a panel    one line of scales, two bf16 in a word: output n and n + W / 2
//!                         four lines of weights + 8: a word holds [w0 w1 w2 w3] in its low nibbles
//!                         and [w4 w5 w6 w7] in its high ones, eight k of one output
//!   a group of inputs     one line of starts, eight lines of [x0 x1 x2 x3], R rows side by side
//! ```
//!
//! Nibbles are the unsigned factor of a byte product: a pair of products is at most 2 * 15 * 127, and a
//! whole group fits 16 bits, in which it is summed. The offset of 8 is taken back by the start of each
//! sum, `-8 sum(x)`. Where a machine sums four products of bytes by one instruction, it does so from the
//! start on, in 32 bits. A group's sum has 15 bits and a scale 8: their product is exact in `f32`, so that
//! fused and separate multiply-adds give the same bits.

use crate::{
    Element,
    gemm::{
        accumulator::{Panel, Sums, Tile},
        panels::REGISTERS,
        quantize::{CHUNK, GROUP, SIGNS, Scale, quantize_int4, round_chunk, word},
        quantized::WeightFormat,
    },
    isa::Isa,
    memory::prefetch::reread,
};

/// Values of `k` in a word.
const DEPTH: usize = 8;
/// Lines of weights in a group.
const LINES: usize = GROUP / DEPTH;
/// Lines of inputs in a group, the starts included.
const INPUT_LINES: usize = 1 + 2 * LINES;
/// Makes weights unsigned.
const OFFSET: i32 = 8;
/// The four nibbles that a mask leaves.
const LOW: u32 = 0x0f0f_0f0f;
/// A byte in each half.
const BYTES: u32 = 0x00ff_00ff;
/// What makes half a group's bytes unsigned.
const UNSIGNED: i32 = 128 * GROUP as i32 / 2;
/// 1 in both halves.
const ONES: u32 = 0x0001_0001;

/// The code of this module.
pub(crate) struct Int4;

/// Words of one group of a panel.
const fn words_per_group(width: usize) -> usize {
    width / 2 + LINES * width
}

impl WeightFormat for Int4 {
    const MAX_IN_FEATURES: usize = usize::MAX;

    const TILE: Tile = Tile::Groups;

    fn words_per_panel(in_features: usize, width: usize) -> usize {
        in_features.div_ceil(GROUP) * words_per_group(width)
    }

    #[inline(always)]
    fn pack_column<T: Element>(
        weights: &[T],
        column: usize,
        width: usize,
        panel: &mut [u32],
    ) -> f32 {
        let groups = panel.chunks_exact_mut(words_per_group(width));
        for (numbers, words) in weights.chunks(GROUP).zip(groups) {
            let group = quantize_int4(numbers);
            let (scales, lines) = words.split_at_mut(width / 2);
            let shift = 16 * (column / (width / 2));
            scales[column % (width / 2)] |= u32::from(group.scale.to_bits()) << shift;
            for (line, w) in lines
                .chunks_exact_mut(width)
                .zip(group.integers.as_chunks::<DEPTH>().0)
            {
                for (place, w) in w.iter().enumerate() {
                    let shift = 8 * (place % 4) + 4 * (place / 4);
                    line[column] |= (i32::from(*w) + OFFSET).cast_unsigned() << shift;
                }
            }
        }
        1.0
    }

    #[inline(always)]
    fn words_per_row<I: Isa>(in_features: usize) -> usize {
        in_features.div_ceil(GROUP) * INPUT_LINES
    }

    #[inline(always)]
    fn pack_row<I: Isa, T: Element, const R: usize>(
        numbers: &[T],
        scale: Scale,
        r: usize,
        packed: &mut [u32],
    ) {
        let (groups, _) = packed.as_chunks_mut::<R>().0.as_chunks_mut::<INPUT_LINES>();
        let mut integers = [0; CHUNK];
        for (numbers, groups) in numbers.chunks(CHUNK).zip(groups.chunks_mut(CHUNK / GROUP)) {
            let integers = round_chunk(numbers, scale, &mut integers);
            for (lines, x) in groups.iter_mut().zip(integers.as_chunks::<GROUP>().0) {
                // Two sums in the halves of a word, of bytes that 128 makes unsigned.
                let mut sums = 0;
                for (line, x) in lines[1..].iter_mut().zip(x.as_chunks::<4>().0) {
                    let word = word(*x);
                    line[r] = word;
                    let unsigned = word ^ SIGNS;
                    sums += (unsigned & BYTES) + (unsigned >> 8 & BYTES);
                }
                let start = |sum: u32| (-OFFSET * (sum.cast_signed() - UNSIGNED)).cast_unsigned();
                let (low, high) = (start(sums & 0xffff), start(sums >> 16));
                lines[0][r] = if I::HAS_DOT {
                    low.wrapping_add(high)
                } else {
                    low & 0xffff | high << 16
                };
            }
        }
    }

    #[inline(always)]
    fn tile<I: Isa, const R: usize>(panel: Panel<'_, u32>, x: &[u32]) -> Sums<I, R, REGISTERS> {
        let width = REGISTERS * I::WORDS;
        let len = words_per_group(width);
        let groups = panel.lines(len);
        let mut totals = [[I::splat(0.0); REGISTERS]; R];
        let (x, _) = x.as_chunks::<R>().0.as_chunks::<INPUT_LINES>();
        for (x, group) in x.iter().zip(groups) {
            let (scales, lines) = group.split_at(I::WORDS);
            let sums = group_sums::<I, R>(lines, x);
            let scales = I::load_words(scales);
            let scales = [I::low(scales), I::high(scales)];
            for r in 0..R {
                for n in 0..REGISTERS {
                    let sum = if I::HAS_DOT {
                        sums[r][n]
                    } else {
                        I::multiply_i16(sums[r][n], I::splat_word(ONES))
                    };
                    totals[r][n] = I::mul_add_lanes(I::convert(sum), scales[n], totals[r][n]);
                }
            }
        }
        totals
    }
}

/// Sums of one group; each in two halves where there is no dot product.
#[inline(always)]
fn group_sums<I: Isa, const R: usize>(
    lines: &[u32],
    x: &[[u32; R]; INPUT_LINES],
) -> [[I::Words; REGISTERS]; R] {
    let width = REGISTERS * I::WORDS;
    let low = I::splat_word(LOW);
    let mut sums = [[low; REGISTERS]; R];
    for r in 0..R {
        sums[r] = [I::broadcast_word(&x[0][r]); REGISTERS];
    }
    for j in 0..LINES {
        let line = &lines[j * width..][..width];
        let mut w = [low; REGISTERS];
        for n in 0..REGISTERS {
            w[n] = I::and(I::load_words(&line[n * I::WORDS..]), low);
        }
        multiply_add::<I, R>(&mut sums, &x[1 + 2 * j], w);
        let line = reread(line);
        for n in 0..REGISTERS {
            w[n] = I::and(
                I::shift_right::<4>(I::load_words(&line[n * I::WORDS..])),
                low,
            );
        }
        multiply_add::<I, R>(&mut sums, &x[2 + 2 * j], w);
    }
    sums
}

#[inline(always)]
fn multiply_add<I: Isa, const R: usize>(
    sums: &mut [[I::Words; REGISTERS]; R],
    x: &[u32; R],
    w: [I::Words; REGISTERS],
) {
    for r in 0..R {
        let x = I::broadcast_word(&x[r]);
        for n in 0..REGISTERS {
            sums[r][n] = if I::HAS_DOT {
                I::add_dot(sums[r][n], w[n], x)
            } else {
                I::multiply_add_u8_i8(sums[r][n], w[n], x)
            };
        }
    }
}
