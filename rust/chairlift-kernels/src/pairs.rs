//! `bf16` linear layers by dot products of pairs, on machines that have the instruction.
//!
//! Inputs stay pairs, as the weights are: a step adds two products to each sum. That is still one chain
//! over `k` for every output, whatever the number of rows; its bits are others than those of
//! multiply-adds of widened numbers.

use crate::bf16;
use crate::dispatch::Kernel;
use crate::element::{Element, Packed};
use crate::isa::Isa;
use crate::linear::PlainProduct;
use crate::panels::{Product, REGISTERS, Share};
use crate::tile::{Ahead, Sums, Tile, accumulate};

/// Numbers in a word.
const DEPTH: usize = <bf16 as Element>::Packed::DEPTH;

/// A share of a `bf16` layer's work, in pairs if the machine can.
pub(crate) struct PerhapsInPairs<'a>(pub(crate) Share<'a, PlainProduct<'a, bf16>>);

impl Kernel for PerhapsInPairs<'_> {
    type Output = ();

    const USES_PAIR_DOT: bool = true;

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Share { product, target } = self.0;
        if I::HAS_PAIR_DOT {
            let product = PairProduct(product);
            Share { product, target }.run::<I>();
        } else {
            Share { product, target }.run::<I>();
        }
    }
}

/// Rows of pairs times the panels of a layer.
struct PairProduct<'a>(PlainProduct<'a, bf16>);

impl Product for PairProduct<'_> {
    type Unit = u32;

    const TILE: Tile = Tile::Pairs;

    #[inline(always)]
    fn units_per_row<I: Isa>(&self) -> usize {
        self.0.x.width().div_ceil(DEPTH)
    }

    /// Lays R rows of x side by side, `[K / 2][R]`; zero is the second number of an odd last one.
    #[inline(always)]
    fn pack<I: Isa, const R: usize>(&self, first: usize, packed: &mut [u32], _scales: &mut [f32]) {
        let (packed, _) = packed.as_chunks_mut::<R>();
        for r in 0..R {
            let (pairs, last) = self.0.x.row(first + r).as_chunks::<DEPTH>();
            let (whole, rest) = packed.split_at_mut(pairs.len());
            for (packed, pair) in whole.iter_mut().zip(pairs) {
                packed[r] = bf16::pack(pair);
            }
            if let [last] = *last {
                rest[0][r] = bf16::pack(&[last, bf16::ZERO]);
            }
        }
    }

    #[inline(always)]
    fn tile<I: Isa, const R: usize>(
        &self,
        panel: usize,
        ahead: Ahead,
        packed: &[u32],
    ) -> Sums<I, R, REGISTERS> {
        let (bias, lines) = self.0.panel::<I>(panel, ahead);
        let (x, _) = packed.as_chunks::<R>();
        accumulate::<I, u32, u32, R, REGISTERS>([bias; R], x, lines)
    }
}
