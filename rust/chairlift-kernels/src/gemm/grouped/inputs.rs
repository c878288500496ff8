//! Rows of inputs, quantized as they come.

use crate::{
    Element,
    gemm::{
        quantize::{GROUP, group_scale, round_group, sum},
        quants::Quants,
        weight_format::Format,
    },
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{prefetch::opaque, rows::Rows},
};

/// Words of a group of inputs of a row before its integers: its scale, and a correction for each part.
pub(super) const fn head_words<F: Format>() -> usize {
    1 + F::PARTS
}

/// Words of a group of inputs of a row.
pub(super) fn input_words<I: Isa, F: Format>() -> usize {
    head_words::<F>() + F::Quants::input_words::<I>()
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

/// Quantizes a group of a row.
#[inline(always)]
pub(super) fn pack_group<I: Isa, F: Format>(numbers: &[f32; GROUP], words: &mut [u32]) {
    // A length that the compiler knows.
    let words = &mut words[..input_words::<I, F>()];
    let scale = group_scale::<I>(numbers);
    // From memory: a compiler that has bytes in registers picks them out one by one.
    let integers = round_group::<I>(numbers, scale);
    let integers = &opaque(std::slice::from_ref(&integers))[0];
    let (head, words) = words.split_at_mut(head_words::<F>());
    head[0] = scale.unit.to_bits();
    for part in 0..F::PARTS {
        let len = GROUP / F::PARTS;
        let integers = &integers[part * len..(part + 1) * len];
        head[1 + part] = if F::HAS_MINIMA {
            (sum::<I>(integers) as f32 * scale.unit).to_bits()
        } else {
            F::Quants::start::<I>(F::OFFSET, integers)
        };
    }
    F::Quants::pack_inputs::<I>(integers, words);
}
