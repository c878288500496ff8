//! One layer by registers of other shapes: the same bits.

use super::*;
use crate::{
    bf16,
    gemm::{
        accumulator::Ahead,
        panels::Product,
        quantize::GROUP,
        register_tile::{MAX_WIDTH, REGISTERS},
    },
    isa::Plain,
    sampling::philox::philox4x32,
};
use half::f16;

const ROWS: usize = 5;
const OUTPUTS: usize = 40;

/// Blocks of any codes, with factors of 0.001 to 0.004.
fn blocks(block_type: BlockType, in_features: usize) -> Vec<u8> {
    let (_, bytes) = block_type.block();
    let row_bytes = block_type.row_bytes(in_features).expect("whole blocks");
    let words = (0..).flat_map(|index| philox4x32([index, 0, 0, 0], [7, 8]));
    let mut blocks: Vec<u8> = words
        .flat_map(u32::to_le_bytes)
        .take(OUTPUTS * row_bytes)
        .collect();
    let rows = blocks.chunks_mut(row_bytes);
    for (index, block) in rows.flat_map(|row| row.chunks_mut(bytes)).enumerate() {
        let factor = f16::from_f32(0.001 + 0.003 * (index % 7) as f32 / 7.0);
        let places: &[usize] = match block_type {
            BlockType::Q8_0
            | BlockType::Q4_0
            | BlockType::Q5_0
            | BlockType::Int8Rotated
            | BlockType::Int8Rotated128 => &[0],
            BlockType::Q6K => &[208],
            BlockType::Mxfp4 => {
                // 2^-11 to 2^-5.
                block[0] = 116 + (index % 7) as u8;
                &[]
            }
            _ => &[0, 2],
        };
        for &place in places {
            block[place..place + 2].copy_from_slice(&factor.to_le_bytes());
        }
    }
    blocks
}

/// Outputs of all rows as one tile, computed by an instruction set that need not be this machine's.
fn outputs<I: Isa, F: Format>(layer: &GroupedLinear, x: Rows<'_, f32>) -> Vec<u32> {
    let product = GroupedProduct::<F>::new(layer, &x);
    let width = REGISTERS * I::LANES;
    let mut packed = vec![0; ROWS * product.units_per_row::<I>()];
    product.pack::<I, ROWS>(0, &mut packed);
    let mut out = vec![0; ROWS * OUTPUTS];
    for panel in 0..OUTPUTS.div_ceil(width) {
        let sums = product.tile::<I, ROWS>(panel, Ahead::Bytes(0), &packed);
        for (r, sums) in sums.into_iter().enumerate() {
            let mut numbers = [0.0; MAX_WIDTH];
            for n in 0..REGISTERS {
                I::store(sums[n], &mut numbers[n * I::LANES..]);
            }
            let columns = panel * width..OUTPUTS.min((panel + 1) * width);
            for (column, number) in columns.zip(numbers) {
                out[r * OUTPUTS + column] = number.to_bits();
            }
        }
    }
    out
}

fn numbers(len: usize) -> Vec<f32> {
    let words = (0..).flat_map(|index| philox4x32([index, 1, 0, 0], [7, 8]));
    let unit = words.map(|word| word as f32 / u32::MAX as f32);
    unit.map(|unit| 4.0 * unit - 2.0).take(len).collect()
}

/// The layer as this machine computes it, with registers of 16 lanes and dot products of bytes, and with
/// 8 lanes and none: the same bits.
fn check<S: GroupSource>(format: WeightFormat, source: &S, in_features: usize) {
    check_of(format, source, &numbers(ROWS * in_features));
}

fn check_of<S: GroupSource>(format: WeightFormat, source: &S, x: &[f32]) {
    let in_features = x.len() / ROWS;
    let x = Rows::contiguous(x, in_features);
    let bias = numbers(OUTPUTS);
    let layer = |width| {
        let shape = (OUTPUTS, in_features);
        GroupedLinear::pack(format, source, shape, Some(&bias[..]), width).expect("it fits")
    };
    let mut out = vec![0.0; ROWS * OUTPUTS];
    let forward = layer(panel_width()).forward(x, RowsMut::contiguous(&mut out, OUTPUTS));
    forward.expect("the shapes fit");
    let expected: Vec<u32> = out.into_iter().map(f32::to_bits).collect();
    let (wide, narrow) = with_format!(format, |F| (
        outputs::<Plain<16, true>, F>(&layer(32), x),
        outputs::<Plain<8, false>, F>(&layer(16), x),
    ));
    assert_eq!(wide, expected, "{format:?}, {in_features}");
    assert_eq!(narrow, expected, "{format:?}, {in_features}");
}

#[test]
fn every_shape_of_registers_gives_the_same_bits() {
    for (_, block_type) in BlockType::NAMES {
        let (weights, _) = block_type.block();
        let mut widths = vec![weights, 3 * weights];
        // With a rest of a row.
        widths.extend((weights == 128).then_some(2 * weights + 32));
        for in_features in widths {
            let blocks = blocks(block_type, in_features);
            let row_bytes = block_type.row_bytes(in_features).expect("whole blocks");
            let rows = Rows::contiguous(&blocks, row_bytes);
            let source = BlockRows::new(rows, block_type).expect("whole blocks");
            check(block_type.format(), &source, in_features);
        }
    }
    for quantization in [Quantization::Int8, Quantization::Int4] {
        for in_features in [1, 31, 33, 65, 150, 250, 256] {
            let weight: Vec<bf16> = numbers(OUTPUTS * in_features)
                .into_iter()
                .map(bf16::from_f32)
                .collect();
            let rows = Rows::contiguous(&weight, in_features);
            let source = QuantizedRows::new(rows, quantization, quantization.is_rotated());
            check(quantization.format(), &source, in_features);
        }
    }
}

#[test]
fn the_largest_floats_and_inputs_stay_within_their_sums() {
    // Bytes of a block: -6 and 6, each also in one of two neighbouring pairs alone.
    let bytes = [[0xff; 4], [0x77; 4], [0xff, 0xff, 0x77, 0x77], [0x7f; 4]];
    let mut blocks = Vec::new();
    for output in 0..OUTPUTS {
        blocks.push(127);
        blocks.extend(bytes[output % 4].repeat(4));
    }
    let rows = Rows::contiguous(&blocks, 17);
    let source = BlockRows::new(rows, BlockType::Mxfp4).expect("whole blocks");
    let signs: [fn(usize) -> bool; ROWS] = [
        |_| true,
        |_| false,
        |k| k % 4 < 2,
        |k| k % 4 >= 2,
        |k| k < 16,
    ];
    let mut x = Vec::new();
    for is_positive in signs {
        x.extend((0..GROUP).map(|k| if is_positive(k) { 127.0 } else { -127.0 }));
    }
    check_of(WeightFormat::Float4, &source, &x);
}
