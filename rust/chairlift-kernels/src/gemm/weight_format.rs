//! How the weights of a layer in groups are packed: as which codes, with which scales and minima.
//!
//! [`WeightFormat`] names a format at run time; a [`Format`] is one that the compiler knows.

use crate::{
    gemm::{
        codes::{Bytes, Codes, Nibbles},
        panels::{MAX_WIDTH, panel_width},
        quantize::{GROUP, Quantization},
    },
    isa::Isa,
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
                type $F = $crate::gemm::weight_format::known::Int8;
                $body
            }
            WeightFormat::Int4 => {
                type $F = $crate::gemm::weight_format::known::Int4;
                $body
            }
            WeightFormat::Int4Min => {
                type $F = $crate::gemm::weight_format::known::Int4Min;
                $body
            }
            WeightFormat::Int4MinWide => {
                type $F = $crate::gemm::weight_format::known::Int4MinWide;
                $body
            }
            WeightFormat::Int8MinWide => {
                type $F = $crate::gemm::weight_format::known::Int8MinWide;
                $body
            }
            WeightFormat::Int8HalvesWide => {
                type $F = $crate::gemm::weight_format::known::Int8HalvesWide;
                $body
            }
        }
    };
}

pub(crate) use with_format;

/// Each [`WeightFormat`] as a type.
pub(crate) mod known {
    use super::{Affine, Bytes, Nibbles, Scaled};
    use half::f16;

    pub(crate) type Int8 = Scaled<Bytes, f16, 128, 1>;
    pub(crate) type Int4 = Scaled<Nibbles, f16, 8, 1>;
    pub(crate) type Int4Min = Affine<Nibbles, f16>;
    pub(crate) type Int4MinWide = Affine<Nibbles, f32>;
    pub(crate) type Int8MinWide = Affine<Bytes, f32>;
    pub(crate) type Int8HalvesWide = Scaled<Bytes, f32, 128, 2>;
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
pub(crate) trait Format: Sync {
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
pub(crate) struct Scaled<C, N, const OFFSET: i32, const PARTS: usize>(PhantomData<(C, N)>);

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
pub(crate) struct Affine<C, N>(PhantomData<(C, N)>);

impl<C: Codes, N: GroupNumbers> Format for Affine<C, N> {
    type Codes = C;
    type Numbers = N;
    const OFFSET: i32 = 0;
    const HAS_MINIMA: bool = true;
    const PARTS: usize = 1;
}

/// How scales and minima are stored.
pub(crate) trait GroupNumbers: Send + Sync {
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
pub(crate) const fn number_words<F: Format>(width: usize) -> usize {
    width / F::Numbers::DEPTH
}

/// Words of a group of a panel.
pub(crate) const fn words_per_group<F: Format>(width: usize) -> usize {
    let kinds = if F::HAS_MINIMA { 2 } else { F::PARTS };
    kinds * number_words::<F>(width) + F::Codes::LINES * width
}

pub(crate) const fn words_per_panel<F: Format>(in_features: usize, width: usize) -> usize {
    in_features.div_ceil(GROUP) * words_per_group::<F>(width)
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
