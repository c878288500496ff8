//! Eight-bit weights, one scale per output; inputs in eight bits, one scale per row.
//!
//! ```text
//!   a word of the panel   [w0 w1 w2 w3] + 128, four k of one output
//!   two lines of inputs   [x0 x2] and [x1 x3] as 16-bit halves, R rows side by side
//! ```
//!
//! A mask leaves `w0` and `w2` as 16-bit halves, a shift `w1` and `w3`; their products with the inputs
//! are exact in 32 bits. Where a machine sums four products of bytes by one instruction, inputs are
//! one line `[x0 x1 x2 x3]` instead and weights are used as they lie. The offset of 128 is taken back by
//! the start of each sum, `-128 sum(x)`.

use crate::Element;
use crate::isa::Isa;
use crate::memory::again;
use crate::panels::REGISTERS;
use crate::quantize::{CHUNK, SIGNS, Scale, round_chunk, scale_int8, word};
use crate::quantized::Code;
use crate::tile::{Panel, Sums, Tile};

/// Values of `k` in a word.
const DEPTH: usize = 4;
/// Makes weights unsigned ([`SIGNS`]).
const OFFSET: i32 = 128;
/// A mask that leaves two bytes of a word; read from memory each time, it takes no register for long.
static EVEN: [u32; 16] = [0x00ff_00ff; 16];

/// Lines of inputs for a line of weights.
const fn input_lines<I: Isa>() -> usize {
    if I::HAS_DOT { 1 } else { 2 }
}

/// The code of this module.
pub(crate) struct Int8;

impl Code for Int8 {
    // 2^31 / 127^2, rounded down to whole words.
    const MAX_IN_FEATURES: usize = 133_144;

    const TILE: Tile = Tile::Integers;

    fn words_per_panel(in_features: usize, width: usize) -> usize {
        in_features.div_ceil(DEPTH) * width
    }

    #[inline(always)]
    fn pack_column<T: Element>(
        weights: &[T],
        column: usize,
        width: usize,
        panel: &mut [u32],
    ) -> f32 {
        let scale = scale_int8(weights);
        let mut integers = [0; CHUNK];
        for (chunk, numbers) in weights.chunks(CHUNK).enumerate() {
            let integers = round_chunk(numbers, scale, &mut integers);
            let words = &mut panel[chunk * (CHUNK / DEPTH) * width..];
            for (line, w) in words.chunks_mut(width).zip(integers.as_chunks::<DEPTH>().0) {
                line[column] = word(*w) ^ SIGNS;
            }
        }
        scale.unit
    }

    #[inline(always)]
    fn words_per_row<I: Isa>(in_features: usize) -> usize {
        1 + input_lines::<I>() * in_features.div_ceil(DEPTH)
    }

    #[inline(always)]
    fn pack_row<I: Isa, T: Element, const R: usize>(
        numbers: &[T],
        scale: Scale,
        r: usize,
        packed: &mut [[u32; R]],
    ) {
        let (start, packed) = packed.split_first_mut().expect("a start and words");
        let len = input_lines::<I>() * CHUNK / DEPTH;
        let mut integers = [0; CHUNK];
        let mut total = 0;
        for (numbers, lines) in numbers.chunks(CHUNK).zip(packed.chunks_mut(len)) {
            let integers = round_chunk(numbers, scale, &mut integers);
            for integer in integers {
                total += i32::from(*integer);
            }
            let (integers, _) = integers.as_chunks::<DEPTH>();
            if I::HAS_DOT {
                for (line, x) in lines.iter_mut().zip(integers) {
                    line[r] = word(*x);
                }
            } else {
                for (lines, [a, b, c, d]) in lines.as_chunks_mut::<2>().0.iter_mut().zip(integers) {
                    lines[0][r] = halves(*a, *c);
                    lines[1][r] = halves(*b, *d);
                }
            }
        }
        start[r] = (-OFFSET * total).cast_unsigned();
    }

    #[inline(always)]
    fn tile<I: Isa, const R: usize>(
        panel: Panel<'_, u32>,
        x: &[[u32; R]],
    ) -> Sums<I, R, REGISTERS> {
        let width = REGISTERS * I::WORDS;
        let lines = panel.lines(width);
        let (start, x) = x.split_first().expect("a start and words");
        let mut sums = [[I::splat_word(0); REGISTERS]; R];
        for r in 0..R {
            sums[r] = [I::broadcast_word(&start[r]); REGISTERS];
        }
        if I::HAS_DOT {
            for (x, line) in x.iter().zip(lines) {
                let mut w = [I::splat_word(0); REGISTERS];
                for n in 0..REGISTERS {
                    w[n] = I::load_words(&line[n * I::WORDS..]);
                }
                for r in 0..R {
                    let x = I::broadcast_word(&x[r]);
                    for n in 0..REGISTERS {
                        sums[r][n] = I::add_dot(sums[r][n], w[n], x);
                    }
                }
            }
            return converted::<I, R>(&sums);
        }
        for (x, line) in x.as_chunks::<2>().0.iter().zip(lines) {
            let even = I::load_words(again(&EVEN));
            let mut w = [even; REGISTERS];
            for n in 0..REGISTERS {
                w[n] = I::and(I::load_words(&line[n * I::WORDS..]), even);
            }
            multiply_add::<I, R>(&mut sums, &x[0], w);
            let line = again(line);
            for n in 0..REGISTERS {
                w[n] = I::shift_right::<8>(I::load_words(&line[n * I::WORDS..]));
            }
            multiply_add::<I, R>(&mut sums, &x[1], w);
        }
        converted::<I, R>(&sums)
    }
}

/// Both halves of a word.
#[inline(always)]
fn halves(low: i8, high: i8) -> u32 {
    let half = |byte: i8| u32::from(i16::from(byte).cast_unsigned());
    half(low) | half(high) << 16
}

/// The sums as numbers.
#[inline(always)]
fn converted<I: Isa, const R: usize>(sums: &[[I::Words; REGISTERS]; R]) -> Sums<I, R, REGISTERS> {
    let mut numbers = [[I::splat(0.0); REGISTERS]; R];
    for r in 0..R {
        for n in 0..REGISTERS {
            numbers[r][n] = I::convert(sums[r][n]);
        }
    }
    numbers
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
            sums[r][n] = I::multiply_add_i16(sums[r][n], w[n], x);
        }
    }
}
