//! Linear layers whose weights are codes of four or eight bits, in groups of 32 with a scale each.
//!
//! `y = b + sum over groups of (sum over k of x_int code - correction) * (x_scale * w_scale)`: inputs are
//! quantized as they come, with a scale per group of 32 too, since a token's few large inputs would make one
//! scale coarse for all others. Sums within a group are exact integers; groups follow each other in ascending
//! order by fused multiply-adds. So neither the other rows nor the threads nor the instruction set can change a
//! bit of a row.
//!
//! ```text
//!   a group of a panel    scales of W outputs, f16 or f32; minima likewise, where there are any; lines of codes
//!   a group of inputs     a line of scales, a line of corrections, lines of integers, R rows side by side
//! ```

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    gemm::{
        accumulator::{Ahead, Panel, Sums, Tile},
        blocks::{BlockRows, BlockType},
        codes::{Bytes, Codes, MAX_INPUT_WORDS, Nibbles},
        panels::{
            MAX_WIDTH, Product, REGISTERS, Scratch, Share, expect_weight, packed_panels,
            padded_bias, panel_width, split_panels,
        },
        quantize::{GROUP, GroupSource, Quantization, QuantizedRows, group_scale, round_group},
    },
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{
        aligned::Aligned,
        rows::{Rows, RowsMut},
    },
};
use half::f16;
use std::marker::PhantomData;

/// How the weights of a layer are packed; chooses the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// Eight bits, `scale * (code - 128)`, scales in f16.
    Int8,
    /// Four bits, `scale * (code - 8)`, scales in f16.
    Int4,
    /// Four bits, `scale * code + minimum`, both in f16.
    Int4Min,
    /// Four bits, `scale * code + minimum`, both in f32.
    Int4MinWide,
    /// Eight bits, `scale * code + minimum`, both in f32.
    Int8MinWide,
    /// Eight bits, `scale * (code - 128)`, scales in f32 for each half of a group.
    Int8HalvesWide,
}

/// Evaluates an expression with the type `$F` that implements a [`WeightFormat`].
macro_rules! with_format {
    ($format:expr, |$F:ident| $body:expr) => {
        match $format {
            WeightFormat::Int8 => {
                type $F = Scaled<Bytes, f16, 128, 1>;
                $body
            }
            WeightFormat::Int4 => {
                type $F = Scaled<Nibbles, f16, 8, 1>;
                $body
            }
            WeightFormat::Int4Min => {
                type $F = Affine<Nibbles, f16>;
                $body
            }
            WeightFormat::Int4MinWide => {
                type $F = Affine<Nibbles, f32>;
                $body
            }
            WeightFormat::Int8MinWide => {
                type $F = Affine<Bytes, f32>;
                $body
            }
            WeightFormat::Int8HalvesWide => {
                type $F = Scaled<Bytes, f32, 128, 2>;
                $body
            }
        }
    };
}

impl WeightFormat {
    /// Bytes of a packed layer: outputs fill whole panels, inputs whole groups, and each output has a bias. None
    /// if no memory is so large.
    pub fn packed_bytes(self, out_features: usize, in_features: usize) -> Option<usize> {
        // A group of one output takes 64 bytes at most.
        if in_features > isize::MAX as usize / MAX_WIDTH / 64 {
            return None;
        }
        let width = panel_width();
        let words = with_format!(self, |F| words_per_panel::<F>(in_features, width));
        let panel = words * size_of::<u32>() + width * size_of::<f32>();
        out_features.div_ceil(width).checked_mul(panel)
    }
}

/// A format of weights, known to the compiler.
trait Format: Sync {
    type Codes: Codes;
    type Numbers: GroupNumbers;

    /// What is taken from each code; where groups have minima nothing is.
    const OFFSET: i32;

    /// Whether each group has a minimum.
    const HAS_MINIMA: bool;

    /// Parts of a group that have a scale each, one or two; with minima one.
    const PARTS: usize;
}

/// `scale * (code - OFFSET)`.
struct Scaled<C, N, const OFFSET: i32, const PARTS: usize>(PhantomData<(C, N)>);

impl<C: Codes, N: GroupNumbers, const OFFSET: i32, const PARTS: usize> Format
    for Scaled<C, N, OFFSET, PARTS>
{
    type Codes = C;
    type Numbers = N;
    const OFFSET: i32 = OFFSET;
    const HAS_MINIMA: bool = false;
    const PARTS: usize = PARTS;
}

/// `scale * code + minimum`.
struct Affine<C, N>(PhantomData<(C, N)>);

impl<C: Codes, N: GroupNumbers> Format for Affine<C, N> {
    type Codes = C;
    type Numbers = N;
    const OFFSET: i32 = 0;
    const HAS_MINIMA: bool = true;
    const PARTS: usize = 1;
}

/// How scales and minima are stored.
trait GroupNumbers: Send + Sync {
    /// Numbers in a word.
    const DEPTH: usize;

    /// Stores a number in column `column` of zeroed words.
    fn put(number: f32, column: usize, words: &mut [u32]);

    /// The first `LANES` numbers.
    fn load<I: Isa>(words: &[u32]) -> I::Vector;
}

impl GroupNumbers for f16 {
    const DEPTH: usize = 2;

    #[inline(always)]
    fn put(number: f32, column: usize, words: &mut [u32]) {
        let bits = u32::from(f16::from_f32(number).to_bits());
        words[column / 2] |= bits << (16 * (column % 2));
    }

    #[inline(always)]
    fn load<I: Isa>(words: &[u32]) -> I::Vector {
        I::load_halves(words)
    }
}

impl GroupNumbers for f32 {
    const DEPTH: usize = 1;

    #[inline(always)]
    fn put(number: f32, column: usize, words: &mut [u32]) {
        words[column] = number.to_bits();
    }

    #[inline(always)]
    fn load<I: Isa>(words: &[u32]) -> I::Vector {
        I::from_bits(I::load_words(words))
    }
}

/// Words of the scales of a group of a panel, or of its minima.
const fn number_words<F: Format>(width: usize) -> usize {
    width / F::Numbers::DEPTH
}

/// Words of a group of a panel.
const fn words_per_group<F: Format>(width: usize) -> usize {
    let kinds = if F::HAS_MINIMA { 2 } else { F::PARTS };
    kinds * number_words::<F>(width) + F::Codes::LINES * width
}

const fn words_per_panel<F: Format>(in_features: usize, width: usize) -> usize {
    in_features.div_ceil(GROUP) * words_per_group::<F>(width)
}

/// Lines of a group of inputs before its integers: its scale, and a correction for each part.
const fn head_lines<F: Format>() -> usize {
    1 + F::PARTS
}

/// Words of a group of inputs of a row.
fn input_lines<I: Isa, F: Format>() -> usize {
    head_lines::<F>() + F::Codes::input_words::<I>()
}

/// `y = x W^T + b` with weights in groups.
pub struct GroupedLinear {
    format: WeightFormat,
    in_features: usize,
    out_features: usize,
    words: Aligned<u32>,
    /// Of whole panels; zero where there is none.
    bias: Aligned<f32>,
}

impl GroupedLinear {
    /// Quantizes `weight` `[out_features, in_features]` to [`WeightFormat::Int8`] or [`WeightFormat::Int4Min`] and
    /// packs it with `bias` `[out_features]`.
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn quantize<T: Element>(
        weight: Rows<'_, T>,
        bias: Option<&[T]>,
        quantization: Quantization,
    ) -> Result<Self, ArgumentError> {
        let source = QuantizedRows::new(weight, quantization);
        let shape = (weight.len(), weight.width());
        Self::pack(quantization.format(), &source, shape, bias, panel_width())
    }

    /// Packs weights that are stored in blocks, without a change of their values: `blocks`
    /// `[out_features, bytes of a row]` and `bias` `[out_features]`.
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn from_blocks(
        blocks: Rows<'_, u8>,
        block_type: BlockType,
        bias: Option<&[f32]>,
    ) -> Result<Self, ArgumentError> {
        let source = BlockRows::new(blocks, block_type)?;
        let shape = (blocks.len(), source.in_features());
        Self::pack(block_type.format(), &source, shape, bias, panel_width())
    }

    fn pack<S: GroupSource, T: Element>(
        format: WeightFormat,
        source: &S,
        (out_features, in_features): (usize, usize),
        bias: Option<&[T]>,
        width: usize,
    ) -> Result<Self, ArgumentError> {
        expect_weight(out_features, in_features)?;
        let bias = padded_bias(bias, out_features, width)?;
        let num_panels = out_features.div_ceil(width);
        let words = with_format!(format, |F| {
            let len = words_per_panel::<F>(in_features, width);
            packed_panels(num_panels, len, |panel, words| {
                let first = panel * width;
                dispatch(PackPanel::<S, F> {
                    source,
                    rows: first..out_features.min(first + width),
                    width,
                    words,
                    format: PhantomData,
                });
            })
        });
        Ok(Self {
            format,
            in_features,
            out_features,
            words,
            bias,
        })
    }

    /// How the weights are packed.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Width of the input.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Width of the output.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Computes `out` `[T, out_features]` from `x` `[T, in_features]`.
    ///
    /// A row with a number that is not finite gives NaN.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn forward<T: Element, O: Element>(
        &self,
        x: Rows<'_, T>,
        out: RowsMut<'_, O>,
    ) -> Result<(), ArgumentError> {
        expect_equal("x", "in_features,", self.in_features, x.width())?;
        expect_equal("out", "out_features,", self.out_features, out.width())?;
        expect_equal("out", "as many rows as x:", x.len(), out.len())?;
        let shape = (self.out_features, self.in_features);
        split_panels(shape, out, |target| {
            with_format!(self.format, |F| {
                let product = GroupedProduct::<F> {
                    layer: self,
                    x: &x,
                    format: PhantomData,
                };
                dispatch(Share { product, target });
            });
        });
        Ok(())
    }
}

impl Quantization {
    /// How the weights are then packed.
    pub fn format(self) -> WeightFormat {
        match self {
            Self::Int8 => WeightFormat::Int8,
            Self::Int4 => WeightFormat::Int4Min,
        }
    }
}

/// Packs some rows of a weight into a panel.
struct PackPanel<'a, S, F> {
    source: &'a S,
    rows: std::ops::Range<usize>,
    width: usize,
    words: &'a mut [u32],
    format: PhantomData<F>,
}

impl<S: GroupSource, F: Format> Kernel for PackPanel<'_, S, F> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let len = number_words::<F>(self.width);
        for (column, row) in self.rows.enumerate() {
            let groups = self
                .words
                .chunks_exact_mut(words_per_group::<F>(self.width));
            for (index, words) in groups.enumerate() {
                let group = self.source.group(row, index);
                let mut words = words;
                let minima = if F::HAS_MINIMA { &[group.min][..] } else { &[] };
                for &number in group.scales[..F::PARTS].iter().chain(minima) {
                    let (numbers, rest) = words.split_at_mut(len);
                    F::Numbers::put(number, column, numbers);
                    words = rest;
                }
                F::Codes::pack(&group.codes, column, self.width, words);
            }
        }
    }
}

/// Rows of inputs of any type: the loops over panels are compiled once for all of them.
trait Inputs: Sync {
    /// Widens row `row` into the front of `numbers`.
    fn read(&self, row: usize, numbers: &mut [f32]);
}

impl<T: Element> Inputs for Rows<'_, T> {
    fn read(&self, row: usize, numbers: &mut [f32]) {
        dispatch(Widen {
            row: self.row(row),
            numbers,
        });
    }
}

struct Widen<'a, T> {
    row: &'a [T],
    numbers: &'a mut [f32],
}

impl<T: Element> Kernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (wide, number) in self.numbers.iter_mut().zip(self.row) {
            *wide = number.to_f32();
        }
    }
}

/// Rows times the panels of a layer.
struct GroupedProduct<'a, F> {
    layer: &'a GroupedLinear,
    x: &'a dyn Inputs,
    format: PhantomData<F>,
}

impl<F: Format> Product for GroupedProduct<'_, F> {
    type Unit = u32;

    const TILE: Tile = Tile::Groups;

    #[inline(always)]
    fn units_per_row<I: Isa>(&self) -> usize {
        self.layer.in_features.div_ceil(GROUP) * input_lines::<I, F>()
    }

    #[inline(always)]
    fn pack<I: Isa, const R: usize>(&self, first: usize, packed: &mut [u32]) {
        let num_groups = self.layer.in_features.div_ceil(GROUP);
        let mut numbers = f32::take_scratch(num_groups * GROUP);
        numbers[self.layer.in_features..num_groups * GROUP].fill(0.0);
        for r in 0..R {
            self.x
                .read(first + r, &mut numbers[..self.layer.in_features]);
            let (groups, _) = numbers[..num_groups * GROUP].as_chunks();
            let lines = packed.as_chunks_mut::<R>().0;
            let inputs = lines.chunks_exact_mut(input_lines::<I, F>());
            for (lines, numbers) in inputs.zip(groups) {
                pack_group::<I, F, R>(numbers, r, lines);
            }
        }
        f32::return_scratch(numbers);
    }

    #[inline(always)]
    fn tile<I: Isa, const R: usize>(
        &self,
        panel: usize,
        ahead: Ahead,
        packed: &[u32],
    ) -> Sums<I, R, REGISTERS> {
        let width = REGISTERS * I::WORDS;
        let len = words_per_panel::<F>(self.layer.in_features, width);
        let weights = Panel {
            units: &self.layer.words[panel * len..(panel + 1) * len],
            ahead,
        };
        let bias = &self.layer.bias[panel * width..];
        let mut starts = [I::splat(0.0); REGISTERS];
        for n in 0..REGISTERS {
            starts[n] = I::load(&bias[n * I::LANES..]);
        }
        let mut totals = [starts; R];
        let inputs = packed
            .as_chunks::<R>()
            .0
            .chunks_exact(input_lines::<I, F>());
        for (x, group) in inputs.zip(weights.lines(words_per_group::<F>(width))) {
            totals = add_group::<I, F, R>(totals, x, group);
        }
        totals
    }
}

/// Quantizes a group of row `r` of a tile.
#[inline(always)]
fn pack_group<I: Isa, F: Format, const R: usize>(
    numbers: &[f32; GROUP],
    r: usize,
    lines: &mut [[u32; R]],
) {
    let scale = group_scale(numbers);
    let integers = round_group(numbers, scale);
    lines[0][r] = scale.unit.to_bits();
    for part in 0..F::PARTS {
        let len = GROUP / F::PARTS;
        let mut sum = 0;
        for integer in &integers[part * len..(part + 1) * len] {
            sum += i32::from(*integer);
        }
        lines[1 + part][r] = if F::HAS_MINIMA {
            (sum as f32 * scale.unit).to_bits()
        } else {
            F::Codes::start::<I>(-F::OFFSET * sum)
        };
    }
    let mut words = [0; MAX_INPUT_WORDS];
    F::Codes::pack_inputs::<I>(&integers, &mut words);
    for (line, word) in lines[head_lines::<F>()..].iter_mut().zip(words) {
        line[r] = word;
    }
}

/// Adds the products of a group to the totals of R rows.
#[inline(always)]
fn add_group<I: Isa, F: Format, const R: usize>(
    totals: Sums<I, R, REGISTERS>,
    x: &[[u32; R]],
    group: &[u32],
) -> Sums<I, R, REGISTERS> {
    let width = REGISTERS * I::WORDS;
    let len = number_words::<F>(width);
    let (head, inputs) = x.split_at(head_lines::<F>());
    let (numbers, codes) = group.split_at(group.len() - F::Codes::LINES * width);
    let mut totals = totals;
    for part in 0..F::PARTS {
        let starts = if F::HAS_MINIMA {
            &[0; R]
        } else {
            &head[1 + part]
        };
        let inputs = &inputs[part * inputs.len() / F::PARTS..][..inputs.len() / F::PARTS];
        let codes = &codes[part * codes.len() / F::PARTS..][..codes.len() / F::PARTS];
        let sums = F::Codes::sums::<I, R>(starts, inputs, codes);
        let scales = load_numbers::<I, F>(&numbers[part * len..]);
        for r in 0..R {
            let unit = I::splat(f32::from_bits(head[0][r]));
            for n in 0..REGISTERS {
                let unit = I::mul_lanes(scales[n], unit);
                totals[r][n] = I::fused_mul_add(I::convert(sums[r][n]), unit, totals[r][n]);
            }
        }
    }
    if F::HAS_MINIMA {
        let minima = load_numbers::<I, F>(&numbers[len..]);
        for r in 0..R {
            let sum = I::splat(f32::from_bits(head[1][r]));
            for n in 0..REGISTERS {
                totals[r][n] = I::fused_mul_add(minima[n], sum, totals[r][n]);
            }
        }
    }
    totals
}

/// Scales or minima of the outputs of a panel.
#[inline(always)]
fn load_numbers<I: Isa, F: Format>(words: &[u32]) -> [I::Vector; REGISTERS] {
    let mut numbers = [I::splat(0.0); REGISTERS];
    for n in 0..REGISTERS {
        numbers[n] = F::Numbers::load::<I>(&words[n * I::LANES / F::Numbers::DEPTH..]);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bf16, isa::Plain, ops::philox::philox4x32};

    const ROWS: usize = 5;
    const OUTPUTS: usize = 40;

    /// Blocks of any codes, with factors of 0.001 to 0.004.
    fn blocks(block_type: BlockType, in_features: usize) -> Vec<u8> {
        let (weights, bytes) = block_type.block();
        let words = (0..).flat_map(|index| philox4x32([index, 0, 0, 0], [7, 8]));
        let mut blocks: Vec<u8> = words
            .flat_map(u32::to_le_bytes)
            .take(OUTPUTS * in_features / weights * bytes)
            .collect();
        for (index, block) in blocks.chunks_mut(bytes).enumerate() {
            let factor = f16::from_f32(0.001 + 0.003 * (index % 7) as f32 / 7.0);
            let places: &[usize] = match block_type {
                BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 => &[0],
                BlockType::Q6K => &[208],
                _ => &[0, 2],
            };
            for &place in places {
                block[place..place + 2].copy_from_slice(&factor.to_le_bytes());
            }
        }
        blocks
    }

    /// Outputs of all rows as one tile, computed by an instruction set that need not be this machine's.
    fn outputs<I: Isa, F: Format>(layer: &GroupedLinear, x: Rows<'_, f32>) -> Vec<u32> {
        let product = GroupedProduct::<F> {
            layer,
            x: &x,
            format: PhantomData,
        };
        let width = REGISTERS * I::LANES;
        let mut packed = vec![0; ROWS * product.units_per_row::<I>()];
        product.pack::<I, ROWS>(0, &mut packed);
        let mut out = vec![0; ROWS * OUTPUTS];
        for panel in 0..OUTPUTS.div_ceil(width) {
            let sums = product.tile::<I, ROWS>(panel, Ahead::Bytes(0), &packed);
            for (r, sums) in sums.into_iter().enumerate() {
                let mut numbers = [0.0; MAX_WIDTH];
                for n in 0..REGISTERS {
                    I::store(sums[n], &mut numbers[n * I::LANES..]);
                }
                let columns = panel * width..OUTPUTS.min((panel + 1) * width);
                for (column, number) in columns.zip(numbers) {
                    out[r * OUTPUTS + column] = number.to_bits();
                }
            }
        }
        out
    }

    fn numbers(len: usize) -> Vec<f32> {
        let words = (0..).flat_map(|index| philox4x32([index, 1, 0, 0], [7, 8]));
        let unit = words.map(|word| word as f32 / u32::MAX as f32);
        unit.map(|unit| 4.0 * unit - 2.0).take(len).collect()
    }

    /// The layer as this machine computes it, with registers of 16 lanes and dot products of bytes, and with
    /// 8 lanes and none: the same bits.
    fn check<S: GroupSource>(format: WeightFormat, source: &S, in_features: usize) {
        let x = numbers(ROWS * in_features);
        let x = Rows::contiguous(&x, in_features);
        let bias = numbers(OUTPUTS);
        let layer = |width| {
            let shape = (OUTPUTS, in_features);
            GroupedLinear::pack(format, source, shape, Some(&bias[..]), width).expect("it fits")
        };
        let mut out = vec![0.0; ROWS * OUTPUTS];
        let forward = layer(panel_width()).forward(x, RowsMut::contiguous(&mut out, OUTPUTS));
        forward.expect("the shapes fit");
        let expected: Vec<u32> = out.into_iter().map(f32::to_bits).collect();
        let (wide, narrow) = with_format!(format, |F| (
            outputs::<Plain<16, true>, F>(&layer(32), x),
            outputs::<Plain<8, false>, F>(&layer(16), x),
        ));
        assert_eq!(wide, expected, "{format:?}, {in_features}");
        assert_eq!(narrow, expected, "{format:?}, {in_features}");
    }

    #[test]
    fn every_shape_of_registers_gives_the_same_bits() {
        for (_, block_type) in BlockType::NAMES {
            let (weights, bytes) = block_type.block();
            for in_features in [weights, 3 * weights] {
                let blocks = blocks(block_type, in_features);
                let rows = Rows::contiguous(&blocks, in_features / weights * bytes);
                let source = BlockRows::new(rows, block_type).expect("whole blocks");
                check(block_type.format(), &source, in_features);
            }
        }
        for quantization in [Quantization::Int8, Quantization::Int4] {
            for in_features in [1, 31, 33, 150] {
                let weight: Vec<bf16> = numbers(OUTPUTS * in_features)
                    .into_iter()
                    .map(bf16::from_f32)
                    .collect();
                let rows = Rows::contiguous(&weight, in_features);
                let source = QuantizedRows::new(rows, quantization);
                check(quantization.format(), &source, in_features);
            }
        }
    }
}
