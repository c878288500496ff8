//! How the weights of a layer in groups are packed: as which codes, with which scales and minima.
//!
//! [`WeightFormat`] names a format at run time; a [`Format`] is one that the compiler knows.

use crate::{
    gemm::{
        quantize::{BlockScale, GROUP, MAX_SPAN, Quantization},
        quants::{FLOAT_OFFSET, Fp4Quants, Int4Quants, Int6Quants, Int8Quants, Quants},
        register_tile::{MAX_WIDTH, REGISTERS, panel_width},
    },
    isa::Isa,
};
use half::{bf16, f16};
use std::marker::PhantomData;

/// How the weights of a layer are packed; chooses the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightFormat {
    /// Eight bits, `scale * (code - 128)`, scales in f16.
    Int8,
    /// The same with a scale for four groups; groups at the end of a row that are fewer have one each.
    Int8Span,
    /// Four bits, `scale * (code - 8)`, scales in f16.
    Int4,
    /// Four bits, `scale * code + minimum`, both in f16.
    Int4Min,
    /// The same with a scale and a minimum for four groups, as of [`Self::Int8Span`].
    Int4MinSpan,
    /// Four bits, `scale * code + minimum`, both in f32.
    Int4MinWide,
    /// Eight bits, `scale * code + minimum`, both in f32.
    Int8MinWide,
    /// Six bits, `scale * (code - 16)`, scales in f16.
    Int6,
    /// Six bits, `scale * code + minimum`, both in f16.
    Int6Min,
    /// Four bits, `scale * code + minimum`, both of eight bits times an f16 of 256 weights.
    Int4MinK,
    /// Six bits, the same.
    Int6MinK,
    /// Six bits, `scale * (code - 32)`, scales of eight bits for each half of a group times an f16 of 256 weights.
    Int6HalvesK,
    /// Floats of four bits, `scale * (code - 12)` with codes of twice their numbers, scales in bf16.
    Float4,
}

/// Evaluates an expression with the type `$F` that implements a [`WeightFormat`].
macro_rules! with_format {
    ($format:expr, |$F:ident| $body:expr) => {
        match $format {
            WeightFormat::Int8 => {
                type $F = $crate::gemm::weight_format::known::Int8;
                $body
            }
            WeightFormat::Int8Span => {
                type $F = $crate::gemm::weight_format::known::Int8Span;
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
            WeightFormat::Int4MinSpan => {
                type $F = $crate::gemm::weight_format::known::Int4MinSpan;
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
            WeightFormat::Int6 => {
                type $F = $crate::gemm::weight_format::known::Int6;
                $body
            }
            WeightFormat::Int6Min => {
                type $F = $crate::gemm::weight_format::known::Int6Min;
                $body
            }
            WeightFormat::Int4MinK => {
                type $F = $crate::gemm::weight_format::known::Int4MinK;
                $body
            }
            WeightFormat::Int6MinK => {
                type $F = $crate::gemm::weight_format::known::Int6MinK;
                $body
            }
            WeightFormat::Int6HalvesK => {
                type $F = $crate::gemm::weight_format::known::Int6HalvesK;
                $body
            }
            WeightFormat::Float4 => {
                type $F = $crate::gemm::weight_format::known::Float4;
                $body
            }
        }
    };
}

pub(crate) use with_format;

/// Each [`WeightFormat`] as a type.
pub(crate) mod known {
    use super::{
        Affine, FLOAT_OFFSET, Fp4Quants, Int4Quants, Int6Quants, Int8Quants, Scaled, Spans,
        SuperBlockCounts,
    };
    use half::{bf16, f16};

    pub(crate) type Int8 = Scaled<Int8Quants, f16, 128, 1>;
    pub(crate) type Int8Span = Spans<Int8>;
    pub(crate) type Int4 = Scaled<Int4Quants, f16, 8, 1>;
    pub(crate) type Int4Min = Affine<Int4Quants, f16>;
    pub(crate) type Int4MinSpan = Spans<Int4Min>;
    pub(crate) type Int4MinWide = Affine<Int4Quants, f32>;
    pub(crate) type Int8MinWide = Affine<Int8Quants, f32>;
    pub(crate) type Int6 = Scaled<Int6Quants, f16, 16, 1>;
    pub(crate) type Int6Min = Affine<Int6Quants, f16>;
    pub(crate) type Int4MinK = Affine<Int4Quants, SuperBlockCounts>;
    pub(crate) type Int6MinK = Affine<Int6Quants, SuperBlockCounts>;
    pub(crate) type Int6HalvesK = Scaled<Int6Quants, SuperBlockCounts, 32, 2>;
    pub(crate) type Float4 = Scaled<Fp4Quants, bf16, FLOAT_OFFSET, 1>;
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
    type Quants: Quants;
    type Numbers: GroupNumbers;

    /// What is taken from each code; where groups have minima nothing is.
    const OFFSET: i32;

    /// Whether each group has a minimum.
    const HAS_MINIMA: bool;

    /// Parts of a group that have a scale each, one or two; with minima one.
    const PARTS: usize;

    /// Groups that share their scale: a span.
    const SPAN: usize;

    /// The format of the groups at the end of a row that are fewer than a span.
    type Rest: Format;
}

/// `scale * (code - OFFSET)`.
pub(crate) struct Scaled<C, N, const OFFSET: i32, const PARTS: usize>(PhantomData<(C, N)>);

impl<C: Quants, N: GroupNumbers, const OFFSET: i32, const PARTS: usize> Format
    for Scaled<C, N, OFFSET, PARTS>
{
    type Quants = C;
    type Numbers = N;
    const OFFSET: i32 = OFFSET;
    const HAS_MINIMA: bool = false;
    const PARTS: usize = PARTS;
    const SPAN: usize = 1;
    type Rest = Self;
}

/// `scale * code + minimum`.
pub(crate) struct Affine<C, N>(PhantomData<(C, N)>);

impl<C: Quants, N: GroupNumbers> Format for Affine<C, N> {
    type Quants = C;
    type Numbers = N;
    const OFFSET: i32 = 0;
    const HAS_MINIMA: bool = true;
    const PARTS: usize = 1;
    const SPAN: usize = 1;
    type Rest = Self;
}

/// A format whose groups share their scale, and their minimum, by four; it has no scales of parts.
pub(crate) struct Spans<F>(PhantomData<F>);

impl<F: Format> Format for Spans<F> {
    type Quants = F::Quants;
    type Numbers = F::Numbers;
    const OFFSET: i32 = F::OFFSET;
    const HAS_MINIMA: bool = F::HAS_MINIMA;
    const PARTS: usize = 1;
    const SPAN: usize = {
        assert!(F::PARTS == 1);
        MAX_SPAN
    };
    type Rest = F;
}

/// How scales and minima are stored.
pub(crate) trait GroupNumbers: Send + Sync {
    /// Numbers in a word.
    const DEPTH: usize;

    /// Groups that share the factors of their numbers, each an f16; 0 where numbers have no factors.
    const SUPER_BLOCK_GROUPS: usize = 0;

    /// Stores a number, without its factor where that is kept, in column `column` of zeroed words.
    fn put(number: BlockScale, column: usize, words: &mut [u32]);

    /// The numbers of register `n` of a panel, whose factors are given too.
    fn load<I: Isa>(words: &[u32], n: usize, factors: &[u32]) -> I::Vector;
}

impl GroupNumbers for f16 {
    const DEPTH: usize = 2;

    #[inline(always)]
    fn put(number: BlockScale, column: usize, words: &mut [u32]) {
        put_half(number.value(), column, words);
    }

    #[inline(always)]
    fn load<I: Isa>(words: &[u32], n: usize, _: &[u32]) -> I::Vector {
        I::load_halves(&words[n * I::LANES / 2..])
    }
}

/// A word holds numbers of both registers, which are widened without a shuffle.
impl GroupNumbers for bf16 {
    const DEPTH: usize = REGISTERS;

    #[inline(always)]
    fn put(number: BlockScale, column: usize, words: &mut [u32]) {
        let bits = u32::from(bf16::from_f32(number.value()).to_bits());
        words[column % words.len()] |= bits << (16 * (column / words.len()));
    }

    #[inline(always)]
    fn load<I: Isa>(words: &[u32], n: usize, _: &[u32]) -> I::Vector {
        let words = I::load_words(words);
        if n == 0 {
            I::low(words)
        } else {
            I::high(words)
        }
    }
}

impl GroupNumbers for f32 {
    const DEPTH: usize = 1;

    #[inline(always)]
    fn put(number: BlockScale, column: usize, words: &mut [u32]) {
        words[column] = number.value().to_bits();
    }

    #[inline(always)]
    fn load<I: Isa>(words: &[u32], n: usize, _: &[u32]) -> I::Vector {
        I::from_bits(I::load_words(&words[n * I::LANES..]))
    }
}

/// Bytes that count multiples of a factor of 256 weights; the products have less than 24 bits, and are exact.
pub(crate) struct SuperBlockCounts;

impl GroupNumbers for SuperBlockCounts {
    const DEPTH: usize = 4;
    const SUPER_BLOCK_GROUPS: usize = 256 / GROUP;

    #[inline(always)]
    fn put(number: BlockScale, column: usize, words: &mut [u32]) {
        let byte = u32::from((number.count as i8).cast_unsigned());
        words[column / 4] |= byte << (8 * (column % 4));
    }

    #[inline(always)]
    fn load<I: Isa>(words: &[u32], n: usize, factors: &[u32]) -> I::Vector {
        let counts = I::convert(I::widen_bytes(&words[n * I::LANES / 4..]));
        I::mul_lanes(counts, I::load_halves(&factors[n * I::LANES / 2..]))
    }
}

/// Stores a number as f16 in column `column` of zeroed words.
#[inline(always)]
pub(crate) fn put_half(number: f32, column: usize, words: &mut [u32]) {
    let bits = u32::from(f16::from_f32(number).to_bits());
    words[column / 2] |= bits << (16 * (column % 2));
}

/// Words of the scales of a span of a panel, or of its minima.
pub(crate) const fn number_words<F: Format>(width: usize) -> usize {
    width / F::Numbers::DEPTH
}

/// Words of a span of a panel.
pub(crate) const fn words_per_span<F: Format>(width: usize) -> usize {
    let kinds = if F::HAS_MINIMA { 2 } else { F::PARTS };
    kinds * number_words::<F>(width) + F::SPAN * F::Quants::LINES * width
}

/// Spans of a row, and groups of its rest.
pub(crate) const fn num_spans<F: Format>(in_features: usize) -> (usize, usize) {
    let num_groups = in_features.div_ceil(GROUP);
    if F::SPAN == 1 {
        return (num_groups, 0);
    }
    // A span is full of inputs.
    let num_spans = in_features / (F::SPAN * GROUP);
    (num_spans, num_groups - num_spans * F::SPAN)
}

/// Words of the factors that groups of a panel share: of their scales, then of their minima.
pub(crate) const fn factor_words<F: Format>(width: usize) -> usize {
    if F::Numbers::SUPER_BLOCK_GROUPS == 0 {
        return 0;
    }
    (1 + F::HAS_MINIMA as usize) * width / 2
}

/// Words of all factors of a panel.
pub(crate) const fn factors_per_panel<F: Format>(in_features: usize, width: usize) -> usize {
    if F::Numbers::SUPER_BLOCK_GROUPS == 0 {
        return 0;
    }
    in_features.div_ceil(GROUP * F::Numbers::SUPER_BLOCK_GROUPS) * factor_words::<F>(width)
}

pub(crate) const fn words_per_panel<F: Format>(in_features: usize, width: usize) -> usize {
    let (num_spans, num_rest) = num_spans::<F>(in_features);
    let spans =
        num_spans * words_per_span::<F>(width) + num_rest * words_per_span::<F::Rest>(width);
    factors_per_panel::<F>(in_features, width) + spans
}

impl Quantization {
    /// How the weights are then packed.
    pub fn format(self) -> WeightFormat {
        match self {
            Self::Int8 => WeightFormat::Int8Span,
            Self::Int4 => WeightFormat::Int4Min,
        }
    }
}
