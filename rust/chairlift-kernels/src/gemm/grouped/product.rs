//! Rows of quantized inputs times the panels of a layer in groups.

use super::{
    GroupedLinear,
    inputs::{Inputs, head_words, input_words, pack_spans},
};
use crate::{
    gemm::{
        accumulator::{Ahead, Panel, PanelLines, Sums, TileKind},
        panels::{Product, Scratch},
        quantize::GROUP,
        quants::{InputWords, Quants, started},
        register_tile::REGISTERS,
        rotation::rotate,
        weight_format::{
            Format, GroupNumbers, factor_words, factors_per_panel, num_spans, number_words,
            words_per_panel, words_per_span,
        },
    },
    isa::Isa,
};
use std::marker::PhantomData;

/// Rows times the panels of a layer.
pub(super) struct GroupedProduct<'a, F> {
    layer: &'a GroupedLinear,
    x: &'a dyn Inputs,
    format: PhantomData<F>,
}

impl<'a, F> GroupedProduct<'a, F> {
    pub(super) fn new(layer: &'a GroupedLinear, x: &'a dyn Inputs) -> Self {
        Self {
            layer,
            x,
            format: PhantomData,
        }
    }
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
        if F::SPAN == 1 || F::Quants::continues::<I>() {
            sums = F::Quants::add::<I, R>(sums, inputs, quants);
            continue;
        }
        let of_group = F::Quants::add::<I, R>(started::<I, R>(None), inputs, quants);
        for r in 0..R {
            for n in 0..REGISTERS {
                sums[r][n] = I::add_i32(sums[r][n], of_group[r][n]);
            }
        }
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
