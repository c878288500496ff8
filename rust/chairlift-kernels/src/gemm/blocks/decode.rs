//! Blocks as groups of codes with scales and minima.

use super::BlockType;
use crate::gemm::{
    quantize::{BlockScale, GROUP, Group},
    quants::FLOATS,
};
use half::f16;

/// Group `part` of a block.
#[inline(always)]
pub(super) fn decode(block_type: BlockType, block: &[u8], part: usize) -> Group {
    match block_type {
        BlockType::Q8_0 | BlockType::Int8Rotated | BlockType::Int8Rotated128 => {
            scaled(block, |k| block[2 + part * GROUP + k] ^ 0x80)
        }
        BlockType::Q4_0 => scaled(block, |k| nibble(&block[2..], k)),
        BlockType::Q4_1 | BlockType::Int4Rotated | BlockType::Int4Rotated128 => {
            affine(block, |k| nibble(&block[4 + part * GROUP / 2..], k))
        }
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
