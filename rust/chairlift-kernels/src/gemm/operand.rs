//! What packed memory is multiplied with, in any matrix work: numbers, or pairs of them on machines that
//! add two products at a time.

use crate::{
    isa::BLOCK,
    isa::{Isa, element::Packed},
};
use bytemuck::Zeroable;

/// The counterpart of a unit P of packed memory, broadcast to all lanes of a register.
pub trait Operand<P: Packed>: Zeroable + Copy + Default {
    /// Numbers in a factor: all of a unit's or one of them.
    const DEPTH: usize;

    /// What a register of units is multiplied as.
    type Register<I: Isa>: Copy;

    /// Part `index < P::DEPTH / DEPTH` of a unit.
    fn part(unit: P, index: usize) -> Self;

    /// Rounds the numbers of a block: the first `16 / DEPTH` factors.
    fn store<I: Isa>(numbers: &[f32; BLOCK], factors: &mut [Self; BLOCK]);

    /// Number `index < DEPTH`.
    fn number(self, index: usize) -> f32;

    /// A factor in memory in all lanes.
    fn broadcast<I: Isa>(&self) -> Self::Register<I>;

    /// Part `index < P::DEPTH / DEPTH` of the first `LANES` units.
    fn load<I: Isa>(units: &[P], index: usize) -> Self::Register<I>;

    /// Adds the products of a factor and units.
    fn multiply_add<I: Isa>(
        a: Self::Register<I>,
        b: Self::Register<I>,
        sums: I::Vector,
    ) -> I::Vector;
}

impl<P: Packed> Operand<P> for f32 {
    const DEPTH: usize = 1;

    type Register<I: Isa> = I::Vector;

    #[inline(always)]
    fn part(unit: P, index: usize) -> f32 {
        unit.get(index)
    }

    #[inline(always)]
    fn store<I: Isa>(numbers: &[f32; BLOCK], factors: &mut [f32; BLOCK]) {
        *factors = *numbers;
    }

    #[inline(always)]
    fn number(self, _index: usize) -> f32 {
        self
    }

    #[inline(always)]
    fn broadcast<I: Isa>(&self) -> I::Vector {
        I::splat(*self)
    }

    #[inline(always)]
    fn load<I: Isa>(units: &[P], index: usize) -> I::Vector {
        P::load::<I>(units, index)
    }

    #[inline(always)]
    fn multiply_add<I: Isa>(a: I::Vector, b: I::Vector, sums: I::Vector) -> I::Vector {
        I::mul_add_lanes(a, b, sums)
    }
}

/// Pairs of `bf16`, by [`Isa::add_pair_dot`].
impl Operand<u32> for u32 {
    const DEPTH: usize = 2;

    type Register<I: Isa> = I::Words;

    #[inline(always)]
    fn part(unit: u32, _index: usize) -> u32 {
        unit
    }

    #[inline(always)]
    fn store<I: Isa>(numbers: &[f32; BLOCK], factors: &mut [u32; BLOCK]) {
        for start in (0..BLOCK).step_by(I::LANES) {
            I::store_pairs(I::load(&numbers[start..]), &mut factors[start / 2..]);
        }
    }

    #[inline(always)]
    fn number(self, index: usize) -> f32 {
        self.get(index)
    }

    #[inline(always)]
    fn broadcast<I: Isa>(&self) -> I::Words {
        I::broadcast_word(self)
    }

    #[inline(always)]
    fn load<I: Isa>(units: &[u32], _index: usize) -> I::Words {
        I::load_words(units)
    }

    #[inline(always)]
    fn multiply_add<I: Isa>(a: I::Words, b: I::Words, sums: I::Vector) -> I::Vector {
        I::add_pair_dot(sums, a, b)
    }
}
