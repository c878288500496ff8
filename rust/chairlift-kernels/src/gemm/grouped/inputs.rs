//! Rows of inputs, quantized as they come.

use crate::{
    Element,
    gemm::{
        codes::{Codes, MAX_INPUT_WORDS},
        quantize::{GROUP, group_scale, round_group, sum},
        weight_format::Format,
    },
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::rows::Rows,
};

/// Lines of a group of inputs before its integers: its scale, and a correction for each part.
pub(super) const fn head_lines<F: Format>() -> usize {
    1 + F::PARTS
}

/// Words of a group of inputs of a row.
pub(super) fn input_lines<I: Isa, F: Format>() -> usize {
    head_lines::<F>() + F::Codes::input_words::<I>()
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

/// Quantizes a group of row `r` of a tile.
#[inline(always)]
pub(super) fn pack_group<I: Isa, F: Format, const R: usize>(
    numbers: &[f32; GROUP],
    r: usize,
    lines: &mut [[u32; R]],
) {
    let scale = group_scale(numbers);
    let integers = round_group(numbers, scale);
    lines[0][r] = scale.unit.to_bits();
    for part in 0..F::PARTS {
        let len = GROUP / F::PARTS;
        let integers = &integers[part * len..(part + 1) * len];
        lines[1 + part][r] = if F::HAS_MINIMA {
            (sum(integers) as f32 * scale.unit).to_bits()
        } else {
            F::Codes::start::<I>(F::OFFSET, integers)
        };
    }
    let mut words = [0; MAX_INPUT_WORDS];
    F::Codes::pack_inputs::<I>(&integers, &mut words);
    for (line, word) in lines[head_lines::<F>()..].iter_mut().zip(words) {
        line[r] = word;
    }
}
