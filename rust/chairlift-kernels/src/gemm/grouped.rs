//! Linear layers whose weights are codes of four, six or eight bits, in groups of 32. A span is one group with a scale, or
//! four groups that share one.
//!
//! `y = b + sum over spans of (sum over k of x_int code - correction) * (x_scale * w_scale)`: inputs are
//! quantized as they come, with a scale per span too, since a token's few large inputs would make one
//! scale coarse for all others. Sums within a span are exact integers; spans follow each other in ascending
//! order by fused multiply-adds. So neither the other rows nor the threads nor the instruction set can change a
//! bit of a row.
//!
//! A layer may hold rotated weights ([`crate::gemm::rotation`]): then its inputs are rotated before they are quantized.
//!
//! ```text
//!   a panel               factors of W outputs for each 256 inputs, where there are any; spans; groups that fill none
//!   a span of a panel     scales of W outputs; minima likewise, where there are any; lines of codes
//!   a span of inputs      of each row its scale, its corrections, its integers
//! ```

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    gemm::{
        accumulator::{Ahead, Panel, PanelLines, Sums, TileKind},
        blocks::{BlockRows, BlockType},
        panels::{Product, Scratch, Share, expect_weight, packed_panels, padded_bias},
        quantize::{GROUP, Group, GroupSource, MAX_SPAN, Quantization, QuantizedRows},
        quants::{InputWords, Quants, started},
        register_tile::{REGISTERS, panel_width},
        rotation::rotate,
        shares::{Target, split_panels},
        weight_format::{
            Format, GroupNumbers, WeightFormat, factor_words, factors_per_panel, num_spans,
            number_words, put_half, with_format, words_per_panel, words_per_span,
        },
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
use inputs::{Inputs, head_words, input_words, pack_spans};
use std::marker::PhantomData;

mod inputs;

pub(crate) use inputs::Widen;

/// `y = x W^T + b` with weights in groups.
pub struct GroupedLinear {
    format: WeightFormat,
    in_features: usize,
    out_features: usize,
    /// Whether weights are rotated, and inputs have to be.
    is_rotated: bool,
    words: Aligned<u32>,
    /// Padded to whole panels; zeros if the layer has no bias.
    bias: Aligned<f32>,
}

impl GroupedLinear {
    /// Quantizes `weight` `[out_features, in_features]` to [`WeightFormat::Int8Wide`] or [`WeightFormat::Int4Min`] and
    /// packs it with `bias` `[out_features]`.
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn quantize<T: Element>(
        weight: Rows<'_, T>,
        bias: Option<&[T]>,
        quantization: Quantization,
    ) -> Result<Self, ArgumentError> {
        let source = QuantizedRows::new(weight, quantization, quantization.is_rotated());
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
                    in_features,
                    format: PhantomData,
                });
            })
        });
        Ok(Self {
            format,
            in_features,
            out_features,
            is_rotated: source.is_rotated(),
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
        split_panels(shape, out, |target| self.multiply(&x, target));
        Ok(())
    }

    /// Computes a share of the outputs of rows of inputs.
    pub(crate) fn multiply<T: Element>(&self, x: &Rows<'_, T>, target: Target<'_>) {
        with_format!(self.format, |F| {
            let product = GroupedProduct::<F> {
                layer: self,
                x,
                format: PhantomData,
            };
            dispatch(Share { product, target });
        });
    }
}

/// Packs some rows of a weight into a panel.
struct PackPanel<'a, S, F> {
    source: &'a S,
    rows: std::ops::Range<usize>,
    width: usize,
    words: &'a mut [u32],
    in_features: usize,
    format: PhantomData<F>,
}

impl<S: GroupSource, F: Format> Kernel for PackPanel<'_, S, F> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let factors = factors_per_panel::<F>(self.in_features, self.width);
        let (num_spans, _) = num_spans::<F>(self.in_features);
        let (factors, spans) = self.words.split_at_mut(factors);
        let (spans, rest) = spans.split_at_mut(num_spans * words_per_span::<F>(self.width));
        for (column, row) in self.rows.enumerate() {
            let column = PanelColumn {
                source: self.source,
                row,
                column,
                width: self.width,
            };
            column.pack::<F>(0, factors, spans);
            if F::SPAN > 1 {
                column.pack::<F::Rest>(num_spans * F::SPAN, &mut [], rest);
            }
        }
    }
}

/// A row of a weight, and its place in a panel.
struct PanelColumn<'a, S> {
    source: &'a S,
    row: usize,
    column: usize,
    width: usize,
}

impl<S: GroupSource> PanelColumn<'_, S> {
    /// Packs spans from group `first` on.
    #[inline(always)]
    fn pack<F: Format>(&self, first: usize, factors: &mut [u32], spans: &mut [u32]) {
        let (column, width) = (self.column, self.width);
        let len = number_words::<F>(width);
        let mut groups = [Group::ZERO; MAX_SPAN];
        let groups = &mut groups[..F::SPAN];
        let spans = spans.chunks_exact_mut(words_per_span::<F>(width));
        for (index, words) in spans.enumerate() {
            self.source.read(self.row, first + index * F::SPAN, groups);
            let shared = groups[0];
            let every = F::Numbers::SUPER_BLOCK_GROUPS;
            if every > 0 && index.is_multiple_of(every) {
                let len = factor_words::<F>(width);
                let factors = &mut factors[index / every * len..][..len];
                let numbers = [shared.scales[0].factor, shared.min.factor];
                for (words, number) in factors.chunks_exact_mut(width / 2).zip(numbers) {
                    put_half(number, column, words);
                }
            }
            let mut words = words;
            let minima = if F::HAS_MINIMA {
                &[shared.min][..]
            } else {
                &[]
            };
            for &number in shared.scales[..F::PARTS].iter().chain(minima) {
                let (numbers, rest) = words.split_at_mut(len);
                F::Numbers::put(number, column, numbers);
                words = rest;
            }
            let words = words.chunks_exact_mut(F::Quants::LINES * width);
            for (group, words) in groups.iter().zip(words) {
                F::Quants::pack(&group.quants, column, width, words);
            }
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

    const TILE: TileKind = if F::SPAN > 1 {
        TileKind::Spans
    } else {
        TileKind::Groups
    };

    #[inline(always)]
    fn units_per_row<I: Isa>(&self) -> usize {
        let (num_spans, num_rest) = num_spans::<F>(self.layer.in_features);
        num_spans * input_words::<I, F>() + num_rest * input_words::<I, F::Rest>()
    }

    #[inline(always)]
    fn pack<I: Isa, const R: usize>(&self, first: usize, packed: &mut [u32]) {
        let len = self.layer.in_features.next_multiple_of(GROUP);
        let mut numbers = f32::take_scratch(len);
        numbers[self.layer.in_features..len].fill(0.0);
        let (num_spans, _) = num_spans::<F>(self.layer.in_features);
        let (spans, rest) = packed.split_at_mut(R * num_spans * input_words::<I, F>());
        for r in 0..R {
            let row = &mut numbers[..self.layer.in_features];
            self.x.read(first + r, row);
            if self.layer.is_rotated {
                rotate(row);
            }
            let (of_spans, of_rest) = numbers[..len].split_at(num_spans * F::SPAN * GROUP);
            pack_spans::<I, F, R>(of_spans, r, spans);
            if F::SPAN > 1 {
                pack_spans::<I, F::Rest, R>(of_rest, r, rest);
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
        let panel_words = &self.layer.words[panel * len..(panel + 1) * len];
        let (factors, spans) =
            panel_words.split_at(factors_per_panel::<F>(self.layer.in_features, width));
        let weights = Panel {
            units: spans,
            ahead,
        };
        let bias = &self.layer.bias[panel * width..];
        let mut starts = [I::splat(0.0); REGISTERS];
        for n in 0..REGISTERS {
            starts[n] = I::load(&bias[n * I::LANES..]);
        }
        let (num_spans, _) = num_spans::<F>(self.layer.in_features);
        let (inputs, rest) = packed.split_at(R * num_spans * input_words::<I, F>());
        let mut lines = weights.lines(words_per_span::<F>(width));
        let totals = add_spans::<I, F, R>([starts; R], inputs, factors, &mut lines);
        if F::SPAN == 1 {
            return totals;
        }
        let mut lines = lines.of_width(words_per_span::<F::Rest>(width));
        add_spans::<I, F::Rest, R>(totals, rest, &[], &mut lines)
    }
}

/// Adds the products of spans to the totals of R rows.
#[inline(always)]
fn add_spans<I: Isa, F: Format, const R: usize>(
    totals: Sums<I, R, REGISTERS>,
    inputs: &[u32],
    factors: &[u32],
    lines: &mut PanelLines<'_, u32>,
) -> Sums<I, R, REGISTERS> {
    let width = REGISTERS * I::WORDS;
    let (mut totals, mut inputs, mut factors) = (totals, inputs, factors);
    let mut index = 0;
    // No `zip`: where its `next` is a call, all totals go through memory for each span.
    while let Some((x, rest)) = inputs.split_at_checked(R * input_words::<I, F>())
        && let Some(span) = lines.next_line()
    {
        lines.prefetch_next(span.len() / F::SPAN);
        totals = add_span::<I, F, R>(totals, x, factors, span, lines);
        inputs = rest;
        index += 1;
        let every = F::Numbers::SUPER_BLOCK_GROUPS;
        if every > 0 && index % every == 0 {
            factors = &factors[factor_words::<F>(width)..];
        }
    }
    totals
}

/// Adds the products of a span to the totals of R rows.
#[inline(always)]
fn add_span<I: Isa, F: Format, const R: usize>(
    totals: Sums<I, R, REGISTERS>,
    x: &[u32],
    factors: &[u32],
    span: &[u32],
    lines: &mut PanelLines<'_, u32>,
) -> Sums<I, R, REGISTERS> {
    let width = REGISTERS * I::WORDS;
    let len = number_words::<F>(width);
    // Lengths that the compiler knows: checks between the loads of a span would keep it from using them
    // one after the other, and spill what it has loaded.
    let x = &x[..R * input_words::<I, F>()];
    let span = &span[..words_per_span::<F>(width)];
    let factors = &factors[..factor_words::<F>(width)];
    let x = InputWords::new(x, input_words::<I, F>());
    let (numbers, quants) = span.split_at(span.len() - F::SPAN * F::Quants::LINES * width);
    // No loop over parts: totals would move from register to register in it.
    let mut totals = add_part::<I, F, R>(totals, x, factors, (numbers, quants), 0, lines);
    if F::PARTS > 1 {
        totals = add_part::<I, F, R>(totals, x, factors, (numbers, quants), 1, lines);
    }
    if F::HAS_MINIMA {
        let minima = load_numbers::<I, F>(&numbers[len..], &factors[factors.len() / 2..]);
        for r in 0..R {
            let sum = I::from_bits(I::broadcast_word(x.word(r, 1)));
            for n in 0..REGISTERS {
                totals[r][n] = I::fused_mul_add(minima[n], sum, totals[r][n]);
            }
        }
    }
    totals
}

/// Adds the products of a part of a group, or of all groups of a span, which share their scales.
#[inline(always)]
fn add_part<I: Isa, F: Format, const R: usize>(
    totals: Sums<I, R, REGISTERS>,
    x: InputWords<'_>,
    factors: &[u32],
    (numbers, quants): (&[u32], &[u32]),
    part: usize,
    lines: &mut PanelLines<'_, u32>,
) -> Sums<I, R, REGISTERS> {
    let starts = (!F::HAS_MINIMA).then(|| x.skip(1 + part));
    let mut sums = started::<I, R>(starts);
    for group in 0..F::SPAN {
        if group > 0 {
            lines.prefetch_next(words_per_span::<F>(REGISTERS * I::WORDS) / F::SPAN);
        }
        let (piece, pieces) = (part + group, F::PARTS * F::SPAN);
        let words = F::SPAN * F::Quants::input_words::<I>() / pieces;
        let inputs = x.skip(head_words::<F>() + piece * words);
        let quants = &quants[piece * quants.len() / pieces..][..quants.len() / pieces];
        sums = F::Quants::add::<I, R>(sums, inputs, quants);
    }
    let mut totals = totals;
    let len = number_words::<F>(REGISTERS * I::WORDS);
    let scales = load_numbers::<I, F>(&numbers[part * len..], factors);
    for r in 0..R {
        let unit = I::from_bits(I::broadcast_word(x.word(r, 0)));
        for n in 0..REGISTERS {
            let unit = I::mul_lanes(scales[n], unit);
            totals[r][n] = I::fused_mul_add(I::convert(sums[r][n]), unit, totals[r][n]);
        }
    }
    totals
}

/// Scales or minima of the outputs of a panel.
#[inline(always)]
fn load_numbers<I: Isa, F: Format>(words: &[u32], factors: &[u32]) -> [I::Vector; REGISTERS] {
    let mut numbers = [I::splat(0.0); REGISTERS];
    for n in 0..REGISTERS {
        numbers[n] = F::Numbers::load::<I>(words, n, factors);
    }
    numbers
}

#[cfg(test)]
mod tests;
