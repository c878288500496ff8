//! [`Isa`] and [`Integers`] in plain code, and what other sets take from it where they have no instruction.

use crate::isa::{
    BLOCK, HIGH, Isa, element::Element, exp::exp2, integers::Integers, set::InstructionSet,
};
use half::{bf16, f16};

/// Adding it pushes the fraction of a number below 2^22 out of the mantissa: it rounds to nearest,
/// ties to even, and leaves the integer in the low bits.
pub(super) const ROUNDER: f32 = 12_582_912.0;

/// Rounds a number to a whole one, of which the low byte is kept.
///
/// A NaN becomes any byte: what is computed of it stays within what the kernels add up.
#[inline(always)]
pub(crate) fn round_to_byte(number: f32) -> i8 {
    let bits = (number + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits());
    bits as u8 as i8
}

/// [`Isa::add_pairs`] of an array.
#[inline(always)]
pub(crate) fn add_pairs<const DISTANCE: usize, const N: usize>(numbers: &[f32; N]) -> [f32; N] {
    std::array::from_fn(|place| {
        let other = numbers[place ^ DISTANCE];
        if place & DISTANCE == 0 {
            numbers[place] + other
        } else {
            other - numbers[place]
        }
    })
}

/// The largest magnitude of some numbers; NaN if one is.
#[inline(always)]
pub(crate) fn largest_magnitude<T: Element>(numbers: &[T]) -> f32 {
    const SIGN: u32 = 1 << 31;
    // The bits of magnitudes are ordered as the magnitudes are, with NaN above infinity.
    let mut largest = 0;
    for number in numbers {
        largest = largest.max(number.to_f32().to_bits() & !SIGN);
    }
    f32::from_bits(largest)
}

/// The sum of bytes, 32 at most.
///
/// Eight at a time in a general register, whose four halves of words cannot overflow: compilers sum
/// bytes one by one.
#[inline(always)]
pub(crate) fn sum_bytes(bytes: &[i8]) -> i32 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    let (eights, rest) = bytes.as_chunks::<8>();
    let mut halves: u64 = 0;
    for eight in eights {
        // 128 more than the integers.
        let bytes = u64::from_le_bytes(eight.map(i8::cast_unsigned)) ^ 0x8080_8080_8080_8080;
        halves += (bytes & EVEN) + (bytes >> 8 & EVEN);
    }
    let mut sum = (halves.wrapping_mul(0x0001_0001_0001_0001) >> 48) as i32;
    sum -= 8 * 128 * eights.len() as i32;
    for byte in rest {
        sum += i32::from(*byte);
    }
    sum
}

/// Plain code, with registers of so many lanes, and perhaps with dot products of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Plain<const LANES: usize, const DOT: bool>;

/// Plain code for whatever the build targets.
pub(crate) type Portable = Plain<8, false>;

impl<const LANES: usize, const DOT: bool> Isa for Plain<LANES, DOT> {
    type Vector = [f32; LANES];

    const SET: InstructionSet = InstructionSet::Portable;
    const LANES: usize = LANES;
    // Registers are taken to be sixteen of four lanes.
    const ROWS: usize = 2;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        // AArch64 always has the fused instruction.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }

    #[inline(always)]
    fn mul_add_lanes(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        std::array::from_fn(|lane| Self::mul_add(a[lane], b[lane], c[lane]))
    }

    #[inline(always)]
    fn fused_mul_add(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn mul_lanes(a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|lane| a[lane] * b[lane])
    }

    #[inline(always)]
    fn add_lanes(a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }

    #[inline(always)]
    fn sub_lanes(a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|lane| a[lane] - b[lane])
    }

    #[inline(always)]
    fn add_pairs<const DISTANCE: usize>(vector: Self::Vector) -> Self::Vector {
        add_pairs::<DISTANCE, LANES>(&vector)
    }

    #[inline(always)]
    fn max_lanes(a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn above(a: Self::Vector, b: Self::Vector) -> u32 {
        let mut bits = 0;
        for lane in 0..LANES {
            bits |= u32::from(a[lane] > b[lane]) << lane;
        }
        bits
    }

    #[inline(always)]
    fn select_lanes(bits: u32, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        let is_set = |lane: usize| bits >> lane & 1 == 1;
        std::array::from_fn(|lane| if is_set(lane) { a[lane] } else { b[lane] })
    }

    #[inline(always)]
    fn splat(number: f32) -> Self::Vector {
        [number; LANES]
    }

    #[inline(always)]
    fn load(numbers: &[f32]) -> Self::Vector {
        *numbers.first_chunk().expect("a register of numbers")
    }

    #[inline(always)]
    fn store(vector: Self::Vector, numbers: &mut [f32]) {
        numbers[..LANES].copy_from_slice(&vector);
    }

    #[inline(always)]
    fn load_halves(words: &[u32]) -> Self::Vector {
        let half = |lane: usize| (words[lane / 2] >> (16 * (lane % 2))) as u16;
        std::array::from_fn(|lane| f16::from_bits(half(lane)).to_f32())
    }

    #[inline(always)]
    fn from_bits(words: Self::Words) -> Self::Vector {
        words.map(f32::from_bits)
    }

    #[inline(always)]
    fn low(words: Self::Words) -> Self::Vector {
        words.map(|word| f32::from_bits(word << 16))
    }

    #[inline(always)]
    fn high(words: Self::Words) -> Self::Vector {
        words.map(|word| f32::from_bits(word & HIGH))
    }

    #[inline(always)]
    fn convert(words: Self::Words) -> Self::Vector {
        words.map(|word| word.cast_signed() as f32)
    }

    #[inline(always)]
    fn exp2_block(numbers: &mut [f32; BLOCK]) {
        exp2_block_by_numbers::<Self>(numbers);
    }

    #[inline(always)]
    fn store_pairs(vector: Self::Vector, pairs: &mut [u32]) {
        store_pairs_by_numbers::<Self>(vector, pairs);
    }

    #[inline(always)]
    fn round_block(numbers: &[f32; BLOCK], out: &mut [bf16; BLOCK]) {
        round_block_by_numbers(numbers, out);
    }
}

impl<const LANES: usize, const DOT: bool> Integers for Plain<LANES, DOT> {
    type Words = [u32; LANES];

    const WORDS: usize = LANES;
    const INTEGER_ROWS: usize = 2;
    const HAS_DOT: bool = DOT;

    #[inline(always)]
    fn splat_word(word: u32) -> [u32; LANES] {
        [word; LANES]
    }

    #[inline(always)]
    fn broadcast_word(word: &u32) -> [u32; LANES] {
        [*word; LANES]
    }

    #[inline(always)]
    fn load_words(words: &[u32]) -> [u32; LANES] {
        *words.first_chunk().expect("a register of words")
    }

    #[inline(always)]
    fn widen_bytes(words: &[u32]) -> [u32; LANES] {
        let byte = |lane: usize| (words[lane / 4] >> (8 * (lane % 4))) as u8;
        std::array::from_fn(|lane| i32::from(byte(lane).cast_signed()).cast_unsigned())
    }

    #[inline(always)]
    fn or(a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        by_lane(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(words: [u32; LANES]) -> [u32; LANES] {
        let kept = (0xffff_u32 << BITS & 0xffff) * 0x0001_0001;
        by_lane(words, words, |word, _| (word << BITS) & kept)
    }

    #[inline(always)]
    fn and(a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        by_lane(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(words: [u32; LANES]) -> [u32; LANES] {
        let kept = (0xffff_u32 >> BITS) * 0x0001_0001;
        by_lane(words, words, |word, _| (word >> BITS) & kept)
    }

    #[inline(always)]
    fn lookup(table: &[u8; 16], places: [u32; LANES]) -> [u32; LANES] {
        places.map(|word| {
            let bytes = word.to_le_bytes();
            u32::from_le_bytes(bytes.map(|place| table[usize::from(place & 15)]))
        })
    }

    #[inline(always)]
    fn multiply_add_i16(sum: [u32; LANES], a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        Self::add_i32(sum, Self::multiply_i16(a, b))
    }

    #[inline(always)]
    fn multiply_add_u8_i8(sum: [u32; LANES], a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        Self::add_i16(sum, Self::multiply_u8_i8(a, b))
    }

    #[inline(always)]
    fn add_i32(a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        by_lane(a, b, u32::wrapping_add)
    }

    #[inline(always)]
    fn add_i16(a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        by_lane(a, b, |a, b| {
            let low = a.wrapping_add(b) & 0xffff;
            let high = (a >> 16).wrapping_add(b >> 16) << 16;
            high | low
        })
    }

    #[inline(always)]
    fn multiply_i16(a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        by_lane(a, b, |a, b| {
            let low = i32::from(a as i16) * i32::from(b as i16);
            let high = i32::from((a >> 16) as i16) * i32::from((b >> 16) as i16);
            low.wrapping_add(high).cast_unsigned()
        })
    }

    #[inline(always)]
    fn multiply_u8_i8(a: [u32; LANES], b: [u32; LANES]) -> [u32; LANES] {
        by_lane(a, b, |a, b| {
            let product =
                |shift: u32| i32::from((a >> shift) as u8) * i32::from((b >> shift) as u8 as i8);
            let half = |shift: u32| {
                let sum = product(shift) + product(shift + 8);
                let held = sum.clamp(i32::from(i16::MIN), i32::from(i16::MAX));
                held.cast_unsigned() & 0xffff
            };
            half(16) << 16 | half(0)
        })
    }
}

#[inline(always)]
fn by_lane<const LANES: usize>(
    a: [u32; LANES],
    b: [u32; LANES],
    operation: impl Fn(u32, u32) -> u32,
) -> [u32; LANES] {
    std::array::from_fn(|lane| operation(a[lane], b[lane]))
}

/// [`Isa::exp2_block`] by the other operations.
#[inline(always)]
pub(super) fn exp2_block_by_numbers<I: Isa>(numbers: &mut [f32; BLOCK]) {
    for number in numbers {
        *number = exp2::<I>(*number);
    }
}

/// [`Isa::store_pairs`] by the other operations.
#[inline(always)]
pub(super) fn store_pairs_by_numbers<I: Isa>(vector: I::Vector, pairs: &mut [u32]) {
    let mut numbers = [0.0; 16];
    I::store(vector, &mut numbers);
    let numbers = numbers[..I::LANES].as_chunks::<2>().0;
    for (pair, numbers) in pairs.iter_mut().zip(numbers) {
        *pair = bf16::pack(&numbers.map(<bf16 as Element>::from_f32));
    }
}

/// [`Isa::round_block`] without the instruction.
#[inline(always)]
pub(super) fn round_block_by_numbers(numbers: &[f32; BLOCK], out: &mut [bf16; BLOCK]) {
    for (out, &number) in out.iter_mut().zip(numbers) {
        *out = <bf16 as Element>::from_f32(number);
    }
}
