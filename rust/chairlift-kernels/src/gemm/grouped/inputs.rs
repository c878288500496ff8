//! Rows of inputs, quantized as they come.

use crate::{
    Element,
    gemm::{
        quantize::{GROUP, MAX_SPAN, SCALES, Scale, Scales, round_group, sum},
        quants::{Quants, start_of_words},
        weight_format::Format,
    },
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{prefetch::opaque, rows::Rows},
};

/// Words of a span of inputs of a row before its integers: its scale, and a correction for each part.
pub(super) const fn head_words<F: Format>() -> usize {
    1 + F::PARTS
}

/// Words of a span of inputs of a row.
pub(super) fn input_words<I: Isa, F: Format>() -> usize {
    head_words::<F>() + F::SPAN * F::Quants::input_words::<I>()
}

/// Rows of inputs of any type: the loops over panels are compiled once for all of them.
pub(super) trait Inputs: Sync {
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

/// Widens a row into the front of `numbers`.
pub(crate) struct Widen<'a, T> {
    pub(crate) row: &'a [T],
    pub(crate) numbers: &'a mut [f32],
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

/// Quantizes the spans of row `r` of R.
#[inline(always)]
pub(super) fn pack_spans<I: Isa, F: Format, const R: usize>(
    numbers: &[f32],
    r: usize,
    packed: &mut [u32],
) {
    let len = input_words::<I, F>();
    let groups = numbers.as_chunks().0.chunks(SCALES * F::SPAN);
    for (words, groups) in packed.chunks_mut(SCALES * R * len).zip(groups) {
        let scales = Scales::of_spans::<I>(groups, F::SPAN);
        let spans = groups.chunks_exact(F::SPAN).enumerate();
        for (words, (place, span)) in words.chunks_exact_mut(R * len).zip(spans) {
            // Hidden from the compiler, which would pack groups side by side and gather their numbers.
            pack_span::<I, F>(
                opaque(span),
                scales.get(place),
                &mut words[r * len..][..len],
            );
        }
    }
}

#[inline(always)]
fn pack_span<I: Isa, F: Format>(span: &[[f32; GROUP]], scale: Scale, words: &mut [u32]) {
    // Lengths that the compiler knows.
    let (span, words) = (&span[..F::SPAN], &mut words[..input_words::<I, F>()]);
    let (head, words) = words.split_at_mut(head_words::<F>());
    head[0] = scale.unit.to_bits();
    let mut integers = [[0; GROUP]; MAX_SPAN];
    for (integers, numbers) in integers.iter_mut().zip(span) {
        *integers = round_group::<I>(numbers, scale);
    }
    // From memory: a compiler that has bytes in registers picks them out one by one.
    let integers = opaque(&integers[..F::SPAN]);
    let of_parts = integers
        .as_flattened()
        .chunks_exact(F::SPAN * GROUP / F::PARTS);
    for (correction, integers) in head[1..].iter_mut().zip(of_parts) {
        *correction = if F::HAS_MINIMA {
            (sum::<I>(integers) as f32 * scale.unit).to_bits()
        } else if F::SPAN > 1 {
            start_of_words::<I>(F::OFFSET, integers)
        } else {
            F::Quants::start::<I>(F::OFFSET, integers)
        };
    }
    let len = F::Quants::input_words::<I>();
    for (words, integers) in words.chunks_exact_mut(len).zip(integers) {
        F::Quants::pack_inputs::<I>(integers, words);
    }
}
