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
        blocks::{BlockRows, BlockType},
        panels::{Share, expect_weight, multiply_packed_once, packed_panels, padded_bias},
        quantize::{Group, GroupSource, MAX_SPAN, Quantization, QuantizedRows},
        quants::Quants,
        register_tile::panel_width,
        shares::{Target, packs_once, split_panels},
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
use product::GroupedProduct;
use std::marker::PhantomData;

mod inputs;
mod product;

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
    /// Quantizes `weight` `[out_features, in_features]` to [`WeightFormat::Int8Span`] or [`WeightFormat::Int4Min`] and
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
        if packs_once(x.len()) {
            with_format!(self.format, |F| {
                let product = GroupedProduct::<F>::new(self, &x);
                multiply_packed_once(&product, shape, out);
            });
        } else {
            split_panels(shape, out, |target| self.multiply(&x, target));
        }
        Ok(())
    }

    /// Computes a share of the outputs of rows of inputs.
    pub(crate) fn multiply<T: Element>(&self, x: &Rows<'_, T>, target: Target<'_>) {
        with_format!(self.format, |F| {
            let product = GroupedProduct::<F>::new(self, x);
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

#[cfg(test)]
mod tests;
