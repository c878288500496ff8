//! The number types of activations, weights and cache, and how they lie in panels.

use crate::{isa::BLOCK, isa::Isa, memory::disjoint::Disjoint};
use bytemuck::Zeroable;
use half::bf16;

/// A number type of activations: `f32` or `bf16`.
pub trait Element: Copy + Default + PartialEq + Send + Sync + 'static {
    /// The unit of packed memory: one number, or two that are neighbours along the summed axis.
    type Packed: Packed;

    /// Widens without loss.
    fn to_f32(self) -> f32;

    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;

    /// Rounds the numbers of a block, as of [`Self::from_f32`]; perhaps subnormal ones to zero.
    #[inline(always)]
    fn round_block<I: Isa>(numbers: &[f32; BLOCK], out: &mut [Self; BLOCK]) {
        for (out, &number) in out.iter_mut().zip(numbers) {
            *out = Self::from_f32(number);
        }
    }

    /// The output, if its numbers are `bf16`.
    #[inline(always)]
    fn as_bf16<'a, 'b>(_out: &'b Disjoint<'a, Self>) -> Option<&'b Disjoint<'a, bf16>> {
        None
    }

    /// Packs `DEPTH` numbers.
    fn pack(parts: &[Self]) -> Self::Packed;

    /// Sees memory of numbers as packed memory.
    ///
    /// # Panics
    /// If the slice is not aligned for it, or its length is not a multiple of `DEPTH`.
    fn as_packed(numbers: &[Self]) -> &[Self::Packed];
}

/// A unit of packed memory that holds `DEPTH` numbers in the order of the summed axis.
///
/// A pair of `bf16` is one 32-bit word: a shift or a mask widens either half in its lane, with no
/// shuffle, and the same words are what AVX-512 BF16 and AMX instructions multiply.
pub trait Packed: Copy + Zeroable + Default + Send + Sync + 'static {
    /// Numbers in the unit.
    const DEPTH: usize;

    /// Number `index < DEPTH`.
    fn get(self, index: usize) -> f32;

    /// Number `index < DEPTH` of each of the first `LANES` units.
    fn load<I: Isa>(units: &[Self], index: usize) -> I::Vector;

    /// Whole numbers as units, in their order; a multiple of 32.
    fn widen<I: Isa>(codes: &[i8], units: &mut [Self]);
}

impl Element for f32 {
    type Packed = f32;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn pack(parts: &[Self]) -> f32 {
        parts[0]
    }

    #[inline(always)]
    fn as_packed(numbers: &[Self]) -> &[f32] {
        numbers
    }
}

impl Packed for f32 {
    const DEPTH: usize = 1;

    #[inline(always)]
    fn get(self, _index: usize) -> f32 {
        self
    }

    #[inline(always)]
    fn load<I: Isa>(units: &[Self], _index: usize) -> I::Vector {
        I::load(units)
    }

    #[inline(always)]
    fn widen<I: Isa>(codes: &[i8], units: &mut [f32]) {
        for (unit, &code) in units.iter_mut().zip(codes) {
            *unit = f32::from(code);
        }
    }
}

impl Element for bf16 {
    type Packed = u32;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        // Without branches, so that loops over it become vector code (`half`'s conversion is not).
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let quiet = bits | 0x0040_0000;
        let chosen = if value.is_nan() { quiet } else { rounded };
        bf16::from_bits((chosen >> 16) as u16)
    }

    #[inline(always)]
    fn round_block<I: Isa>(numbers: &[f32; BLOCK], out: &mut [bf16; BLOCK]) {
        I::round_block(numbers, out);
    }

    #[inline(always)]
    fn as_bf16<'a, 'b>(out: &'b Disjoint<'a, bf16>) -> Option<&'b Disjoint<'a, bf16>> {
        Some(out)
    }

    #[inline(always)]
    fn pack(parts: &[Self]) -> u32 {
        u32::from(parts[0].to_bits()) | u32::from(parts[1].to_bits()) << 16
    }

    #[inline(always)]
    fn as_packed(numbers: &[Self]) -> &[u32] {
        bytemuck::cast_slice(numbers)
    }
}

impl Packed for u32 {
    const DEPTH: usize = 2;

    #[inline(always)]
    fn get(self, index: usize) -> f32 {
        // The first number of a pair is the low half (little endian).
        f32::from_bits(self >> (16 * index) << 16)
    }

    #[inline(always)]
    fn load<I: Isa>(units: &[Self], index: usize) -> I::Vector {
        let words = I::load_words(units);
        if index == 0 {
            I::low(words)
        } else {
            I::high(words)
        }
    }

    #[inline(always)]
    fn widen<I: Isa>(codes: &[i8], units: &mut [u32]) {
        let (codes, units) = (codes.as_chunks().0, units.as_chunks_mut().0);
        for (codes, pairs) in codes.iter().zip(units) {
            I::widen_to_pairs(codes, pairs);
        }
    }
}

#[cfg(target_endian = "big")]
compile_error!("packed bf16 pairs assume little endian");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::dispatch::{Kernel, dispatch};

    #[test]
    fn bf16_rounds_like_half() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let ours = <bf16 as Element>::from_f32(value);
                let half = bf16::from_f32(value);
                assert!(ours == half || ours.is_nan() && half.is_nan(), "{value:e}");
            }
        }
    }

    struct Widen([u32; 16], usize);

    impl Kernel for Widen {
        type Output = [f32; 16];

        #[inline(always)]
        fn run<I: Isa>(self) -> [f32; 16] {
            let mut wide = [0.0; 16];
            for start in (0..16).step_by(I::LANES) {
                I::store(u32::load::<I>(&self.0[start..], self.1), &mut wide[start..]);
            }
            wide
        }
    }

    #[test]
    fn a_pair_widens_to_its_numbers() {
        let mut pairs = [0; 16];
        for (index, pair) in pairs.iter_mut().enumerate() {
            let number = index as f32;
            *pair = bf16::pack(&[bf16::from_f32(number), bf16::from_f32(-0.5 * number)]);
        }
        for index in 0..16 {
            assert_eq!(dispatch(Widen(pairs, 0))[index], index as f32);
            assert_eq!(dispatch(Widen(pairs, 1))[index], -0.5 * index as f32);
        }
    }
}
