//! Weights in blocks of 32, 128 or 256 neighbours along `k`: those of GGUF files, two that others are rewritten to, and
//! four of rotated weights, which `chairlift quantize` writes or wrote.
//!
//! The layouts of the former are those of `ggml-quants` (llama.cpp). A block is decoded to groups of 32 codes with scales and
//! minima that are exactly those of the file: products of its half-precision factors and small integers fit
//! `f32`.

use crate::isa::{
    Isa,
    dispatch::{Kernel, dispatch},
};
use crate::{
    Rows, RowsMut,
    error::{ArgumentError, expect_equal},
    gemm::{
        quantize::{GROUP, Group, GroupSource, MAX_SPAN, Quantization, QuantizedRows},
        rotation::rotate,
        weight_format::{Format, WeightFormat, with_format},
    },
};
use decode::decode;
use half::f16;

mod decode;

/// How the weights of a row lie in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockType {
    /// 32 of eight bits and a scale.
    Q8_0,
    /// 32 of four bits and a scale.
    Q4_0,
    /// 32 of four bits, a scale and a minimum.
    Q4_1,
    /// 32 of five bits and a scale.
    Q5_0,
    /// 32 of five bits, a scale and a minimum.
    Q5_1,
    /// 256 of four bits, scales and minima per 32.
    Q4K,
    /// 256 of five bits, scales and minima per 32.
    Q5K,
    /// 256 of six bits, scales per 16.
    Q6K,
    /// 32 floats of four bits (e2m1), and the exponent of their scale.
    Mxfp4,
    /// 32 of four bits, a scale and a minimum in f32: what AWQ, GPTQ and others are rewritten to.
    Affine4,
    /// 32 of eight bits, a scale and a minimum in f32.
    Affine8,
    /// As [`Self::Q8_0`], of rotated weights ([`crate::gemm::rotation`]).
    Int8Rotated,
    /// 128 rotated weights of eight bits and a scale; what is left of a row is in blocks of [`Self::Int8Rotated`].
    Int8Rotated128,
    /// As [`Self::Q4_1`], of rotated weights.
    Int4Rotated,
    /// 128 rotated weights of four bits, a scale and a minimum; what is left of a row is in blocks of [`Self::Int4Rotated`].
    Int4Rotated128,
}

impl BlockType {
    /// Their names, for the most part those of GGUF.
    pub const NAMES: [(&'static str, Self); 15] = [
        ("Q8_0", Self::Q8_0),
        ("Q4_0", Self::Q4_0),
        ("Q4_1", Self::Q4_1),
        ("Q5_0", Self::Q5_0),
        ("Q5_1", Self::Q5_1),
        ("Q4_K", Self::Q4K),
        ("Q5_K", Self::Q5K),
        ("Q6_K", Self::Q6K),
        ("MXFP4", Self::Mxfp4),
        ("AFFINE4", Self::Affine4),
        ("AFFINE8", Self::Affine8),
        ("INT8_ROTATED", Self::Int8Rotated),
        ("INT8_ROTATED_128", Self::Int8Rotated128),
        ("INT4_ROTATED", Self::Int4Rotated),
        ("INT4_ROTATED_128", Self::Int4Rotated128),
    ];

    /// Weights and bytes of a block.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::Q8_0 | Self::Int8Rotated => (32, 34),
            Self::Mxfp4 => (32, 17),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 | Self::Int4Rotated => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 | Self::Affine4 => (32, 24),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Affine8 => (32, 40),
            Self::Int8Rotated128 => (128, 130),
            Self::Int4Rotated128 => (128, 68),
        }
    }

    /// The type of the blocks of what is left of a row; None where rows are whole blocks.
    fn rest(self) -> Option<Self> {
        match self {
            Self::Int8Rotated128 => Some(Self::Int8Rotated),
            Self::Int4Rotated128 => Some(Self::Int4Rotated),
            _ => None,
        }
    }

    /// Bytes of a row of weights; None if they are no whole blocks.
    pub fn row_bytes(self, num_weights: usize) -> Option<usize> {
        let (weights, bytes) = self.block();
        let whole = (num_weights / weights).checked_mul(bytes)?;
        match num_weights % weights {
            0 => Some(whole),
            rest => self.rest()?.row_bytes(rest)?.checked_add(whole),
        }
    }

    /// Weights of a row of bytes; None if they are no whole blocks.
    pub fn row_weights(self, num_bytes: usize) -> Option<usize> {
        let (weights, bytes) = self.block();
        let whole = (num_bytes / bytes).checked_mul(weights)?;
        match num_bytes % bytes {
            0 => Some(whole),
            rest => self.rest()?.row_weights(rest)?.checked_add(whole),
        }
    }

    /// How a layer of such weights is packed.
    pub fn format(self) -> WeightFormat {
        match self {
            Self::Q8_0 | Self::Int8Rotated => WeightFormat::Int8,
            Self::Int8Rotated128 => WeightFormat::Int8Span,
            Self::Q4_0 => WeightFormat::Int4,
            Self::Q4_1 | Self::Int4Rotated => WeightFormat::Int4Min,
            Self::Int4Rotated128 => WeightFormat::Int4MinSpan,
            Self::Q5_0 => WeightFormat::Int6,
            Self::Q5_1 => WeightFormat::Int6Min,
            Self::Q4K => WeightFormat::Int4MinK,
            Self::Q5K => WeightFormat::Int6MinK,
            Self::Q6K => WeightFormat::Int6HalvesK,
            Self::Mxfp4 => WeightFormat::Float4,
            Self::Affine4 => WeightFormat::Int4MinWide,
            Self::Affine8 => WeightFormat::Int8MinWide,
        }
    }

    /// Whether the weights are rotated.
    fn is_rotated(self) -> bool {
        matches!(
            self,
            Self::Int8Rotated | Self::Int8Rotated128 | Self::Int4Rotated | Self::Int4Rotated128
        )
    }

    /// How numbers are quantized to such blocks; None where nothing does that here.
    fn quantization(self) -> Option<Quantization> {
        match self {
            Self::Q8_0 | Self::Int8Rotated | Self::Int8Rotated128 => Some(Quantization::Int8),
            Self::Q4_1 | Self::Int4Rotated => Some(Quantization::Int4),
            _ => None,
        }
    }
}

/// Writes the weights of `blocks` `[N, bytes of a row]` to `out` `[N, K]`: the single-precision product of scale and
/// code, plus the minimum where there is one. Rotated weights are rotated back.
///
/// # Errors
/// If the shapes do not fit each other.
pub fn dequantize(
    blocks: Rows<'_, u8>,
    block_type: BlockType,
    out: RowsMut<'_, f32>,
) -> Result<(), ArgumentError> {
    let source = BlockRows::new(blocks, block_type)?;
    expect_equal("out", "as many rows as blocks:", blocks.len(), out.len())?;
    expect_equal(
        "out",
        "the width of a row,",
        source.in_features(),
        out.width(),
    )?;
    let offset = with_format!(block_type.format(), |F| F::OFFSET);
    out.par_rows(|part| {
        for (row, out) in part {
            for (index, weights) in out.chunks_exact_mut(GROUP).enumerate() {
                let group = source.group(row, index);
                for (k, (weight, code)) in weights.iter_mut().zip(group.quants).enumerate() {
                    let code = (i32::from(code) - offset) as f32;
                    *weight = group.scales[2 * k / GROUP].value() * code + group.min.value();
                }
            }
            if block_type.is_rotated() {
                rotate(out);
            }
        }
    });
    Ok(())
}

/// Quantizes `weight` `[N, K]` to `out` `[N, bytes of a row]`, whose type is one that
/// [`Quantization`] makes; the codes and scales are those that [`crate::gemm::grouped::GroupedLinear::quantize`]
/// packs, if it rotates, too.
///
/// # Errors
/// If the type is another, or the shapes do not fit each other.
pub fn quantize(
    weight: Rows<'_, f32>,
    block_type: BlockType,
    out: RowsMut<'_, u8>,
) -> Result<(), ArgumentError> {
    let Some(quantization) = block_type.quantization() else {
        let got = BlockType::NAMES
            .iter()
            .find(|(_, named)| *named == block_type);
        let expected = "Q8_0, Q4_1, INT8_ROTATED, INT8_ROTATED_128 or INT4_ROTATED";
        return Err(ArgumentError::new(
            "block_type",
            expected,
            got.map_or("", |(name, _)| name),
        ));
    };
    let (weights, bytes) = block_type.block();
    let Some(row_bytes) = block_type.row_bytes(weight.width()) else {
        let expected = format_args!("rows of a multiple of {GROUP} weights");
        return Err(ArgumentError::new("weight", expected, weight.width()));
    };
    expect_equal("out", "as many rows as weight:", weight.len(), out.len())?;
    expect_equal("out", "the bytes of a row,", row_bytes, out.width())?;
    let source = QuantizedRows::new(weight, quantization, block_type.is_rotated());
    out.par_rows(|part| {
        for (row, out) in part {
            let (whole, rest) = out.split_at_mut(out.len() / bytes * bytes);
            let first_of_rest = whole.len() / bytes * weights / GROUP;
            let quantize = |block_type, first, out| {
                dispatch(QuantizeRow {
                    source: &source,
                    row,
                    first,
                    block_type,
                    out,
                });
            };
            quantize(block_type, 0, whole);
            if let Some(block_type) = block_type.rest() {
                quantize(block_type, first_of_rest, rest);
            }
        }
    });
    Ok(())
}

/// Quantizes a row, from group `first` on, to blocks: a scale, perhaps a minimum, and codes of eight or of four bits.
struct QuantizeRow<'a> {
    source: &'a QuantizedRows<'a, f32>,
    row: usize,
    first: usize,
    block_type: BlockType,
    out: &'a mut [u8],
}

impl Kernel for QuantizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let has_minima = self.block_type.quantization() == Some(Quantization::Int4);
        let (weights, bytes) = self.block_type.block();
        let mut groups = [Group::ZERO; MAX_SPAN];
        let groups = &mut groups[..weights / GROUP];
        for (index, block) in self.out.chunks_exact_mut(bytes).enumerate() {
            self.source
                .read(self.row, self.first + index * groups.len(), groups);
            let shared = groups[0];
            let (scale, block) = block.split_at_mut(2);
            scale.copy_from_slice(&f16::from_f32(shared.scales[0].value()).to_le_bytes());
            if has_minima {
                let (minimum, codes) = block.split_at_mut(2);
                minimum.copy_from_slice(&f16::from_f32(shared.min.value()).to_le_bytes());
                let (low, high) = shared.quants.split_at(GROUP / 2);
                for ((codes, low), high) in codes.iter_mut().zip(low).zip(high) {
                    *codes = low | high << 4;
                }
            } else {
                let quants = groups.iter().flat_map(|group| group.quants);
                for (code, quant) in block.iter_mut().zip(quants) {
                    *code = quant ^ 0x80;
                }
            }
        }
    }
}

/// Rows of blocks.
pub(crate) struct BlockRows<'a> {
    blocks: Rows<'a, u8>,
    block_type: BlockType,
    in_features: usize,
}

impl<'a> BlockRows<'a> {
    /// # Errors
    /// If a row is not a whole number of blocks.
    pub(crate) fn new(blocks: Rows<'a, u8>, block_type: BlockType) -> Result<Self, ArgumentError> {
        let Some(in_features) = block_type.row_weights(blocks.width()) else {
            let (_, bytes) = block_type.block();
            let expected = match block_type.rest() {
                None => format!("rows of a multiple of {bytes} bytes"),
                Some(rest) => format!("rows of {bytes} bytes each, then of {}", rest.block().1),
            };
            return Err(ArgumentError::new("blocks", expected, blocks.width()));
        };
        Ok(Self {
            blocks,
            block_type,
            in_features,
        })
    }

    pub(crate) fn in_features(&self) -> usize {
        self.in_features
    }

    /// Group `index` of row `row`.
    #[inline(always)]
    fn group(&self, row: usize, index: usize) -> Group {
        let (row, (weights, bytes)) = (self.blocks.row(row), self.block_type.block());
        let (block, groups) = (index * GROUP / weights, weights / GROUP);
        let num_blocks = self.in_features / weights;
        match self.block_type.rest() {
            Some(rest) if block == num_blocks => {
                let (_, rest_bytes) = rest.block();
                let first = num_blocks * bytes + index % groups * rest_bytes;
                decode(rest, &row[first..first + rest_bytes], 0)
            }
            _ => decode(
                self.block_type,
                &row[block * bytes..][..bytes],
                index % groups,
            ),
        }
    }
}

impl GroupSource for BlockRows<'_> {
    fn is_rotated(&self) -> bool {
        self.block_type.is_rotated()
    }

    #[inline(always)]
    fn read(&self, row: usize, first: usize, groups: &mut [Group]) {
        for (index, group) in groups.iter_mut().enumerate() {
            *group = self.group(row, first + index);
        }
    }
}
