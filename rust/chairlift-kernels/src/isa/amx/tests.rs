//! The plain code against what the instructions are defined to do, and the instructions against the plain code.

use super::emulated::EmulatedTiles;
use super::{ROWS, Tiles, WORDS, multiply_tiles};
use crate::{bf16, isa::element::Element, sampling::philox::philox4x32};

/// Words that are reproducible, any bits.
fn words(seed: u32, len: usize) -> Vec<u32> {
    let fours = (0..).flat_map(|index| philox4x32([index, seed, 0, 0], [5, 6]));
    fours.take(len).collect()
}

/// Pairs of bf16 of very different sizes, some of them subnormal, zero, infinite or NaN.
fn pairs(seed: u32, len: usize) -> Vec<u32> {
    let rare = [
        0x0000_8000,
        0x0001_8001,
        0x0080_007f,
        0x7f80_3f80,
        0x7fc0_ff80,
    ];
    let words = words(seed, len).into_iter().enumerate();
    let words = words.map(|(index, word)| match (word >> 7) % 64 {
        0 => rare[index % rare.len()],
        // Exponents 2^-8 to 2^7.
        _ => word & 0x87ff_87ff | 0x3800_3800,
    });
    words.collect()
}

/// What is in tiles of sums after two products.
fn run<T: Tiles>(rows: usize) -> Vec<u32> {
    let stride = 2 * WORDS;
    let mut tiles = T::configure(rows);
    let starts: Vec<f32> = pairs(1, WORDS).into_iter().map(f32::from_bits).collect();
    tiles.start::<0>(&starts);
    tiles.start::<1>(&[0.0; WORDS]);
    tiles.start::<2>(&starts);
    tiles.start::<3>(&[0.0; WORDS]);
    for step in 0..2 {
        let weights = pairs(2 + step, ROWS * stride);
        tiles.load_inputs::<4>(&pairs(4 + step, rows * WORDS));
        tiles.load_inputs::<5>(&pairs(6 + step, rows * WORDS));
        tiles.load_weights::<6>(&weights, stride);
        tiles.load_weights::<7>(&weights[WORDS..], stride);
        tiles.multiply_add::<0, 4, 6>();
        tiles.multiply_add::<1, 4, 7>();
        tiles.multiply_add::<2, 5, 6>();
        tiles.multiply_add::<3, 5, 7>();
    }
    let mut stored = vec![0; 2 * rows * stride];
    let (top, bottom) = stored.split_at_mut(rows * stride);
    tiles.store::<0>(top, stride);
    tiles.store::<1>(&mut top[WORDS..], stride);
    tiles.store::<2>(bottom, stride);
    tiles.store::<3>(&mut bottom[WORDS..], stride);
    stored
}

/// Replaces every NaN by one value: no kernel relies on which of several NaNs a sum keeps.
#[cfg(target_arch = "x86_64")]
fn with_one_nan(words: Vec<u32>) -> Vec<u32> {
    let is_nan = |word| f32::from_bits(word).is_nan();
    let one = words
        .into_iter()
        .map(|word| if is_nan(word) { u32::MAX } else { word });
    one.collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn instructions_give_the_bits_of_plain_code() {
    use super::TileRegisters;
    use crate::isa::{dispatch::instruction_set, set::InstructionSet};

    if instruction_set() != InstructionSet::Amx {
        return;
    }
    for rows in [1, 2, 7, 15, 16] {
        let by_instructions = with_one_nan(run::<TileRegisters>(rows));
        let by_code = with_one_nan(run::<EmulatedTiles>(rows));
        assert_eq!(by_instructions, by_code, "{rows} rows");
    }
}

/// One sum of 16 words of inputs and weights.
fn dot(start: f32, inputs: [u32; WORDS], weights: [u32; ROWS]) -> u32 {
    let mut tiles = EmulatedTiles::configure(1);
    tiles.start::<0>(&[start; WORDS]);
    tiles.load_inputs::<4>(&inputs);
    tiles.load_weights::<6>(weights.map(|word| [word; WORDS]).as_flattened(), WORDS);
    tiles.multiply_add::<0, 4, 6>();
    let mut sums = [0; WORDS];
    tiles.store::<0>(&mut sums, WORDS);
    assert!(sums.iter().all(|&sum| sum == sums[0]));
    sums[0]
}

fn pair(low: f32, high: f32) -> u32 {
    bf16::pack(&[low, high].map(bf16::from_f32))
}

#[test]
fn first_and_second_numbers_of_pairs_are_summed_apart() {
    // 2^24 + 1 is not a number of 24 bits: in one chain the ones would be lost.
    let inputs = [pair(1.0, 0.0); WORDS];
    let mut weights = [pair(0.0, 7.0); ROWS];
    weights[0] = pair(16_777_216.0, 7.0);
    assert_eq!(dot(0.0, inputs, weights), 16_777_216_f32.to_bits());
    let inputs = [pair(1.0, 1.0); WORDS];
    let mut weights = [pair(0.0, 1.0); ROWS];
    weights[0] = pair(16_777_216.0, 1.0);
    assert_eq!(dot(0.0, inputs, weights), 16_777_232_f32.to_bits());
}

#[test]
fn subnormal_numbers_are_taken_for_zero() {
    let tiny = f32::MIN_POSITIVE / 2.0;
    assert_eq!(dot(tiny, [0; WORDS], [0; ROWS]), 0);
    let inputs = [pair(tiny, 0.0); WORDS];
    assert_eq!(dot(0.0, inputs, [pair(1.0, 0.0); ROWS]), 0);
    let inputs = [pair(f32::MIN_POSITIVE, 0.0); WORDS];
    assert_eq!(dot(0.0, inputs, [pair(0.25, 0.0); ROWS]), 0);
}

#[test]
fn operations_of_tiles_are_counted() {
    assert_eq!(multiply_tiles::<EmulatedTiles>(3), 3 * 4 * 2 * 16 * 16 * 32);
}
