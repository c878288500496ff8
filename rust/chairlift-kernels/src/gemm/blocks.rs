//! Weights in blocks of 32 or 256 neighbours along `k`: those of GGUF files, two that others are rewritten to, and two
//! of rotated weights, which `chairlift quantize` writes.
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
        quantize::{BlockScale, GROUP, Group, GroupSource, Quantization, QuantizedRows},
        quants::FLOATS,
        rotation::rotate,
        weight_format::{Format, WeightFormat, with_format},
    },
};
use half::f16;

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
    /// As [`Self::Q4_1`], of rotated weights.
    Int4Rotated,
}

impl BlockType {
    /// Their names, for the most part those of GGUF.
    pub const NAMES: [(&'static str, Self); 13] = [
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
        ("INT4_ROTATED", Self::Int4Rotated),
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
        }
    }

    /// How a layer of such weights is packed.
    pub fn format(self) -> WeightFormat {
        match self {
            Self::Q8_0 | Self::Int8Rotated => WeightFormat::Int8,
            Self::Q4_0 => WeightFormat::Int4,
            Self::Q4_1 | Self::Int4Rotated => WeightFormat::Int4Min,
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
        matches!(self, Self::Int8Rotated | Self::Int4Rotated)
    }

    /// How numbers are quantized to such blocks; None where nothing does that here.
    fn quantization(self) -> Option<Quantization> {
        match self {
            Self::Q8_0 | Self::Int8Rotated => Some(Quantization::Int8),
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

/// Quantizes `weight` `[N, K]` to `out` `[N, bytes of a row]`, whose type is one of 32 weights that
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
        let expected = "Q8_0, Q4_1, INT8_ROTATED or INT4_ROTATED";
        return Err(ArgumentError::new(
            "block_type",
            expected,
            got.map_or("", |(name, _)| name),
        ));
    };
    let (weights, bytes) = block_type.block();
    if !weight.width().is_multiple_of(weights) {
        let expected = format_args!("rows of a multiple of {weights} weights");
        return Err(ArgumentError::new("weight", expected, weight.width()));
    }
    expect_equal("out", "as many rows as weight:", weight.len(), out.len())?;
    expect_equal(
        "out",
        "the bytes of a row,",
        weight.width() / weights * bytes,
        out.width(),
    )?;
    let source = QuantizedRows::new(weight, quantization, block_type.is_rotated());
    out.par_rows(|part| {
        for (row, out) in part {
            dispatch(QuantizeRow {
                source: &source,
                row,
                has_minima: quantization == Quantization::Int4,
                out,
            });
        }
    });
    Ok(())
}

/// Quantizes a row to blocks of 32: a scale, perhaps a minimum, and codes of eight or of four bits.
struct QuantizeRow<'a> {
    source: &'a QuantizedRows<'a, f32>,
    row: usize,
    has_minima: bool,
    out: &'a mut [u8],
}

impl Kernel for QuantizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let bytes = if self.has_minima { 20 } else { 34 };
        for (index, block) in self.out.chunks_exact_mut(bytes).enumerate() {
            let group = self.source.group(self.row, index);
            let (scale, block) = block.split_at_mut(2);
            scale.copy_from_slice(&f16::from_f32(group.scales[0].value()).to_le_bytes());
            if self.has_minima {
                let (minimum, codes) = block.split_at_mut(2);
                minimum.copy_from_slice(&f16::from_f32(group.min.value()).to_le_bytes());
                let (low, high) = group.quants.split_at(GROUP / 2);
                for ((codes, low), high) in codes.iter_mut().zip(low).zip(high) {
                    *codes = low | high << 4;
                }
            } else {
                for (code, quant) in block.iter_mut().zip(group.quants) {
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
}

impl<'a> BlockRows<'a> {
    /// # Errors
    /// If a row is not a whole number of blocks.
    pub(crate) fn new(blocks: Rows<'a, u8>, block_type: BlockType) -> Result<Self, ArgumentError> {
        let (_, bytes) = block_type.block();
        if !blocks.width().is_multiple_of(bytes) {
            let expected = format_args!("rows of a multiple of {bytes} bytes");
            return Err(ArgumentError::new("blocks", expected, blocks.width()));
        }
        Ok(Self { blocks, block_type })
    }

    pub(crate) fn in_features(&self) -> usize {
        let (weights, bytes) = self.block_type.block();
        self.blocks.width() / bytes * weights
    }
}

impl GroupSource for BlockRows<'_> {
    fn is_rotated(&self) -> bool {
        self.block_type.is_rotated()
    }

    #[inline(always)]
    fn group(&self, row: usize, index: usize) -> Group {
        let (weights, bytes) = self.block_type.block();
        let first = index * GROUP / weights * bytes;
        let block = &self.blocks.row(row)[first..first + bytes];
        let part = index % (weights / GROUP);
        match self.block_type {
            BlockType::Q8_0 | BlockType::Int8Rotated => scaled(block, |k| block[2 + k] ^ 0x80),
            BlockType::Q4_0 => scaled(block, |k| nibble(&block[2..], k)),
            BlockType::Q4_1 | BlockType::Int4Rotated => affine(block, |k| nibble(&block[4..], k)),
            BlockType::Q5_0 => scaled(block, |k| five_bits(&block[2..], k)),
            BlockType::Q5_1 => affine(block, |k| five_bits(&block[4..], k)),
            BlockType::Q4K => k_quant(block, part, |k| half_byte(&block[16..], part, k)),
            BlockType::Q5K => k_quant(block, part, |k| {
                half_byte(&block[48..], part, k) | (block[16 + k] >> part & 1) << 4
            }),
            BlockType::Q6K => q6_k(block, part),
            BlockType::Mxfp4 => floats(block),
            BlockType::Affine4 => affine_wide(block, |k| nibble(&block[8..], k)),
            BlockType::Affine8 => affine_wide(block, |k| block[8 + k]),
        }
    }
}

fn multiple(count: f32, factor: f32) -> BlockScale {
    BlockScale { count, factor }
}

fn quants(code: impl Fn(usize) -> u8) -> [u8; GROUP] {
    std::array::from_fn(code)
}

fn number(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// A block that begins with its scale.
fn scaled(block: &[u8], code: impl Fn(usize) -> u8) -> Group {
    Group {
        quants: quants(code),
        scales: [BlockScale::of_one(number(block)); 2],
        min: BlockScale::ZERO,
    }
}

/// A block that begins with its scale and minimum.
fn affine(block: &[u8], code: impl Fn(usize) -> u8) -> Group {
    Group {
        min: BlockScale::of_one(number(&block[2..])),
        ..scaled(block, code)
    }
}

/// A block that begins with its scale and minimum in single precision.
fn affine_wide(block: &[u8], code: impl Fn(usize) -> u8) -> Group {
    let number =
        |at: usize| f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    Group {
        quants: quants(code),
        scales: [BlockScale::of_one(number(0)); 2],
        min: BlockScale::of_one(number(4)),
    }
}

/// A block of an exponent, and floats of four bits.
fn floats(block: &[u8]) -> Group {
    // Codes are twice the numbers: half of 2^(exponent - 127), the least two of which are subnormal.
    let exponent = u32::from(block[0]);
    let bits = if exponent < 2 {
        0x0020_0000 << exponent
    } else {
        (exponent - 1) << 23
    };
    Group {
        quants: quants(|k| FLOATS[usize::from(nibble(&block[1..], k))]),
        scales: [BlockScale::of_one(f32::from_bits(bits)); 2],
        min: BlockScale::ZERO,
    }
}

/// Code `k` of 32: the low nibbles of 16 bytes, then the high ones.
fn nibble(bytes: &[u8], k: usize) -> u8 {
    bytes[k % 16] >> (4 * (k / 16)) & 15
}

/// Code `k` of 32, whose fifth bits come first.
fn five_bits(bytes: &[u8], k: usize) -> u8 {
    nibble(&bytes[4..], k) | (bytes[k / 8] >> (k % 8) & 1) << 4
}

/// Code `k` of group `part` of 256: of 32 bytes the low nibbles are a group, the high ones the next.
fn half_byte(bytes: &[u8], part: usize, k: usize) -> u8 {
    bytes[part / 2 * 32 + k] >> (4 * (part % 2)) & 15
}

/// A group of a block that begins with two factors, and with a scale and a minimum of six bits per group: of
/// four groups in the low six bits of 12 bytes, of four others split over two bytes each.
fn k_quant(block: &[u8], part: usize, code: impl Fn(usize) -> u8) -> Group {
    let packed = &block[4..16];
    let (scale, min) = if part < 4 {
        (packed[part] & 63, packed[part + 4] & 63)
    } else {
        let low = packed[part + 4];
        (
            low & 15 | packed[part - 4] >> 6 << 4,
            low >> 4 | packed[part] >> 6 << 4,
        )
    };
    Group {
        quants: quants(code),
        scales: [multiple(f32::from(scale), number(block)); 2],
        min: multiple(f32::from(min), -number(&block[2..])),
    }
}

/// A group of 128 low nibbles, 64 pairs of high bits, 16 signed scales and a factor.
fn q6_k(block: &[u8], part: usize) -> Group {
    let (half, quarter) = (part / 4, part % 4);
    let low = &block[64 * half + 32 * (quarter % 2)..];
    let high = &block[128 + 32 * half..];
    let factor = number(&block[208..]);
    let scale = |index: usize| {
        let count = block[192 + 2 * part + index].cast_signed();
        multiple(f32::from(count), factor)
    };
    Group {
        quants: quants(|k| {
            low[k] >> (4 * (quarter / 2)) & 15 | (high[k] >> (2 * quarter) & 3) << 4
        }),
        scales: [scale(0), scale(1)],
        min: BlockScale::ZERO,
    }
}
