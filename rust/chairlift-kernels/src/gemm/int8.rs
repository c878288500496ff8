//! Eight-bit weights, one scale per output; inputs in eight bits, one scale per row.
//!
//! ```text
//!   a word of the panel   [w0 w1 w2 w3] + 128, four k of one output
//!   two words of inputs   [x0 x2] and [x1 x3] as 16-bit halves
//! ```
//!
//! A mask leaves `w0` and `w2` as 16-bit halves, a shift `w1` and `w3`; their products with the inputs
//! are exact in 32 bits. Where a machine sums four products of bytes by one instruction, inputs are
//! one word `[x0 x1 x2 x3]` instead and weights are used as they lie. The offset of 128 is taken back by
//! the start of each sum, `-128 sum(x)`, which has the first strip of a row to itself.

use crate::{
    Element,
    gemm::{
        accumulator::{Panel, STRIP, Sums, Tile},
        amx_gemm::{Lines, RowScale, TiledProduct},
        panels::{MAX_WIDTH, Product, REGISTERS, Share},
        quantize::{CHUNK, SIGNS, Scale, round_chunk, scale_int8, word},
        quantized::{QuantizedProduct, WeightFormat},
    },
    isa::amx::Dot,
    isa::{Isa, dispatch::Kernel},
    memory::prefetch::reread,
};

/// Values of `k` in a word.
const DEPTH: usize = 4;
/// Makes weights unsigned ([`SIGNS`]).
const OFFSET: i32 = 128;
/// A mask that leaves two bytes of a word; read from memory each time, it takes no register for long.
static EVEN: [u32; 16] = [0x00ff_00ff; 16];

/// Words of a row of inputs for a line of weights.
const fn input_words<I: Isa>() -> usize {
    if I::HAS_DOT { 1 } else { 2 }
}

/// The code of this module.
pub(crate) struct Int8;

impl WeightFormat for Int8 {
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
        let words = input_words::<I>() * in_features.div_ceil(DEPTH);
        STRIP + words.next_multiple_of(STRIP)
    }

    #[inline(always)]
    fn pack_row<I: Isa, T: Element, const R: usize>(
        numbers: &[T],
        scale: Scale,
        r: usize,
        packed: &mut [u32],
    ) {
        let (starts, strips) = packed.as_chunks_mut::<STRIP>().0.split_at_mut(R);
        let mut strips = strips.iter_mut().skip(r).step_by(R);
        let mut integers = [0; CHUNK];
        let mut total = 0;
        for numbers in numbers.chunks(CHUNK) {
            let integers = round_chunk(numbers, scale, &mut integers);
            total += sum(integers);
            let (integers, _) = integers.as_chunks::<DEPTH>();
            let parts = integers.chunks(STRIP / input_words::<I>());
            for (x, strip) in parts.zip(strips.by_ref()) {
                if I::HAS_DOT {
                    copy(x, strip);
                } else {
                    for (places, [a, b, c, d]) in strip.as_chunks_mut::<2>().0.iter_mut().zip(x) {
                        *places = [halves(*a, *c), halves(*b, *d)];
                    }
                }
            }
        }
        starts[r][0] = sum_start(total);
    }

    #[inline(always)]
    fn tile<I: Isa, const R: usize>(panel: Panel<'_, u32>, x: &[u32]) -> Sums<I, R, REGISTERS> {
        let width = REGISTERS * I::WORDS;
        let mut lines = panel.lines(width);
        let (x, _) = x.as_chunks::<STRIP>().0.as_chunks::<R>();
        let (starts, x) = x.split_first().expect("starts and words");
        let mut sums = [[I::splat_word(0); REGISTERS]; R];
        for r in 0..R {
            sums[r] = [I::broadcast_word(&starts[r][0]); REGISTERS];
        }
        for strips in x {
            let words = (0..STRIP).step_by(input_words::<I>());
            for (place, line) in words.zip(&mut lines) {
                add_line::<I, R>(&mut sums, strips, place, line);
            }
        }
        converted::<I, R>(&sums)
    }
}

/// One line of weights against the inputs at `place`.
#[inline(always)]
fn add_line<I: Isa, const R: usize>(
    sums: &mut [[I::Words; REGISTERS]; R],
    strips: &[[u32; STRIP]; R],
    place: usize,
    line: &[u32],
) {
    if I::HAS_DOT {
        let mut w = [I::splat_word(0); REGISTERS];
        for n in 0..REGISTERS {
            w[n] = I::load_words(&line[n * I::WORDS..]);
        }
        for r in 0..R {
            let x = I::broadcast_word(&strips[r][place]);
            for n in 0..REGISTERS {
                sums[r][n] = I::add_dot(sums[r][n], w[n], x);
            }
        }
        return;
    }
    let even = I::load_words(reread(&EVEN));
    let mut w = [even; REGISTERS];
    for n in 0..REGISTERS {
        w[n] = I::and(I::load_words(&line[n * I::WORDS..]), even);
    }
    multiply_add::<I, R>(sums, strips, place, w);
    let line = reread(line);
    for n in 0..REGISTERS {
        w[n] = I::shift_right::<8>(I::load_words(&line[n * I::WORDS..]));
    }
    multiply_add::<I, R>(sums, strips, place + 1, w);
}

/// The integers as words, at the start of `words`.
#[inline(always)]
fn copy(integers: &[[i8; DEPTH]], words: &mut [u32]) {
    for (packed, x) in words.iter_mut().zip(integers) {
        *packed = word(*x);
    }
}

#[inline(always)]
fn sum(integers: &[i8]) -> i32 {
    let mut total = 0;
    for integer in integers {
        total += i32::from(*integer);
    }
    total
}

/// Where a sum starts, so that the offset of the weights is taken back; from the sum of the inputs.
#[inline(always)]
fn sum_start(total: i32) -> u32 {
    (-OFFSET * total).cast_unsigned()
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
    strips: &[[u32; STRIP]; R],
    place: usize,
    w: [I::Words; REGISTERS],
) {
    for r in 0..R {
        let x = I::broadcast_word(&strips[r][place]);
        for n in 0..REGISTERS {
            sums[r][n] = I::multiply_add_i16(sums[r][n], w[n], x);
        }
    }
}

/// A share of an int8 layer's work, by tiles if the machine can and rows are many.
pub(crate) struct PerhapsInTiles<'a, T>(pub(crate) Share<'a, QuantizedProduct<'a, T, Int8>>);

impl<T: Element> Kernel for PerhapsInTiles<'_, T> {
    type Output = ();

    const USES_DOT: bool = true;

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self(share) = self;
        if !(I::HAS_DOT && share.run_by_tiles::<I>()) {
            share.run::<I>();
        }
    }
}

impl<T: Element> TiledProduct for QuantizedProduct<'_, T, Int8> {
    const DOT: Dot = Dot::Bytes;

    // With fewer, reading weights takes longer than multiplying them by the dot products of a register.
    const LEAST_ROWS: usize = 8;

    #[inline(always)]
    fn in_features(&self) -> usize {
        self.x.width()
    }

    #[inline(always)]
    fn pack_line(&self, row: usize, mut lines: Lines<'_>) -> RowScale {
        let numbers = self.x.row(row);
        let scale = scale_int8(numbers);
        let mut integers = [0; CHUNK];
        let mut total = 0;
        for numbers in numbers.chunks(CHUNK) {
            let integers = round_chunk(numbers, scale, &mut integers);
            total += sum(integers);
            for (integers, line) in integers.as_chunks::<64>().0.iter().zip(&mut lines) {
                copy(integers.as_chunks().0, line);
            }
        }
        RowScale {
            start: sum_start(total),
            unit: scale.unit,
        }
    }

    #[inline(always)]
    fn starts(&self, _panel: usize, _width: usize) -> &[f32] {
        &[0.0; MAX_WIDTH]
    }

    #[inline(always)]
    fn weights(&self, panel: usize, width: usize) -> &[u32] {
        self.words(panel, width)
    }

    #[inline(always)]
    fn outputs<I: Isa>(
        &self,
        panel: usize,
        row: RowScale,
        sums: &[u32; MAX_WIDTH],
    ) -> [f32; MAX_WIDTH] {
        let start = I::splat_word(row.start);
        let mut outputs = [I::splat(0.0); REGISTERS];
        for n in 0..REGISTERS {
            let sums = I::load_words(&sums[n * I::WORDS..]);
            outputs[n] = I::convert(I::add_i32(sums, start));
        }
        let outputs = self.finish::<I>(panel, row.unit, outputs);
        let mut numbers = [0.0; MAX_WIDTH];
        for n in 0..REGISTERS {
            I::store(outputs[n], &mut numbers[n * I::LANES..]);
        }
        numbers
    }
}
