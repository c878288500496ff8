//! Linear layers whose weights are codes of four, six or eight bits, in groups of 32 with a scale each.
//!
//! `y = b + sum over groups of (sum over k of x_int code - correction) * (x_scale * w_scale)`: inputs are
//! quantized as they come, with a scale per group of 32 too, since a token's few large inputs would make one
//! scale coarse for all others. Sums within a group are exact integers; groups follow each other in ascending
//! order by fused multiply-adds. So neither the other rows nor the threads nor the instruction set can change a
//! bit of a row.
//!
//! A layer may hold rotated weights ([`crate::gemm::rotation`]): then its inputs are rotated before they are quantized.
//!
//! ```text
//!   a panel               factors of W outputs for each 256 inputs, where there are any; groups
//!   a group of a panel    scales of W outputs; minima likewise, where there are any; lines of codes
//!   a group of inputs     of each row its scale, its corrections, its integers
//! ```

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    gemm::{
        accumulator::{Ahead, Panel, Sums, TileKind},
        blocks::{BlockRows, BlockType},
        panels::{Product, Scratch, Share, expect_weight, packed_panels, padded_bias},
        quantize::{GROUP, GroupSource, Quantization, QuantizedRows},
        quants::{InputWords, Quants},
        register_tile::{REGISTERS, panel_width},
        rotation::rotate,
        shares::{Target, split_panels},
        weight_format::{
            Format, GroupNumbers, WeightFormat, factor_words, factors_per_panel, number_words,
            put_half, with_format, words_per_group, words_per_panel,
        },
    },
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{
        aligned::Aligned,
        prefetch::opaque,
        rows::{Rows, RowsMut},
    },
};
use inputs::{Inputs, head_words, input_words, pack_group};
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
        let len = number_words::<F>(self.width);
        let factors = factors_per_panel::<F>(self.in_features, self.width);
        let (factors, groups) = self.words.split_at_mut(factors);
        for (column, row) in self.rows.enumerate() {
            let groups = groups.chunks_exact_mut(words_per_group::<F>(self.width));
            for (index, words) in groups.enumerate() {
                let group = self.source.group(row, index);
                let every = F::Numbers::SUPER_BLOCK_GROUPS;
                if every > 0 && index.is_multiple_of(every) {
                    let len = factor_words::<F>(self.width);
                    let shared = &mut factors[index / every * len..][..len];
                    let numbers = [group.scales[0].factor, group.min.factor];
                    for (words, number) in shared.chunks_exact_mut(self.width / 2).zip(numbers) {
                        put_half(number, column, words);
                    }
                }
                let mut words = words;
                let minima = if F::HAS_MINIMA { &[group.min][..] } else { &[] };
                for &number in group.scales[..F::PARTS].iter().chain(minima) {
                    let (numbers, rest) = words.split_at_mut(len);
                    F::Numbers::put(number, column, numbers);
                    words = rest;
                }
                F::Quants::pack(&group.quants, column, self.width, words);
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

    const TILE: TileKind = TileKind::Groups;

    #[inline(always)]
    fn units_per_row<I: Isa>(&self) -> usize {
        self.layer.in_features.div_ceil(GROUP) * input_words::<I, F>()
    }

    #[inline(always)]
    fn pack<I: Isa, const R: usize>(&self, first: usize, packed: &mut [u32]) {
        let len = self.layer.in_features.next_multiple_of(GROUP);
        let mut numbers = f32::take_scratch(len);
        numbers[self.layer.in_features..len].fill(0.0);
        for r in 0..R {
            let row = &mut numbers[..self.layer.in_features];
            self.x.read(first + r, row);
            if self.layer.is_rotated {
                rotate(row);
            }
            let (groups, _) = numbers[..len].as_chunks();
            let words = input_words::<I, F>();
            for (group, numbers) in packed.chunks_exact_mut(R * words).zip(groups) {
                // Hidden from the compiler, which would pack groups side by side and gather their numbers.
                pack_group::<I, F>(
                    &opaque(std::slice::from_ref(numbers))[0],
                    &mut group[r * words..][..words],
                );
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
        let (mut factors, groups) =
            panel_words.split_at(factors_per_panel::<F>(self.layer.in_features, width));
        let weights = Panel {
            units: groups,
            ahead,
        };
        let bias = &self.layer.bias[panel * width..];
        let mut starts = [I::splat(0.0); REGISTERS];
        for n in 0..REGISTERS {
            starts[n] = I::load(&bias[n * I::LANES..]);
        }
        let mut totals = [starts; R];
        // No `zip`: where its `next` is a call, all totals go through memory for each group.
        let mut groups = weights.lines(words_per_group::<F>(width));
        let mut inputs = packed;
        let mut index = 0;
        while let Some((x, rest)) = inputs.split_at_checked(R * input_words::<I, F>())
            && let Some(group) = groups.next()
        {
            totals = add_group::<I, F, R>(totals, x, factors, group);
            inputs = rest;
            index += 1;
            let every = F::Numbers::SUPER_BLOCK_GROUPS;
            if every > 0 && index % every == 0 {
                factors = &factors[factor_words::<F>(width)..];
            }
        }
        totals
    }
}

/// Adds the products of a group to the totals of R rows.
#[inline(always)]
fn add_group<I: Isa, F: Format, const R: usize>(
    totals: Sums<I, R, REGISTERS>,
    x: &[u32],
    factors: &[u32],
    group: &[u32],
) -> Sums<I, R, REGISTERS> {
    let width = REGISTERS * I::WORDS;
    let len = number_words::<F>(width);
    // Lengths that the compiler knows: checks between the loads of a group would keep it from using them
    // one after the other, and spill what it has loaded.
    let x = &x[..R * input_words::<I, F>()];
    let group = &group[..words_per_group::<F>(width)];
    let factors = &factors[..factor_words::<F>(width)];
    let x = InputWords::new(x, input_words::<I, F>());
    let inputs = x.skip(head_words::<F>());
    let (numbers, quants) = group.split_at(group.len() - F::Quants::LINES * width);
    let mut totals = totals;
    for part in 0..F::PARTS {
        let starts = (!F::HAS_MINIMA).then(|| x.skip(1 + part));
        let inputs = inputs.skip(part * F::Quants::input_words::<I>() / F::PARTS);
        let quants = &quants[part * quants.len() / F::PARTS..][..quants.len() / F::PARTS];
        let sums = F::Quants::sums::<I, R>(starts, inputs, quants);
        let scales = load_numbers::<I, F>(&numbers[part * len..], factors);
        for r in 0..R {
            let unit = I::from_bits(I::broadcast_word(x.word(r, 0)));
            for n in 0..REGISTERS {
                let unit = I::mul_lanes(scales[n], unit);
                totals[r][n] = I::fused_mul_add(I::convert(sums[r][n]), unit, totals[r][n]);
            }
        }
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
