//! `bf16` linear layers by dot products of pairs, on machines that have the instruction.
//!
//! Inputs stay pairs, as the weights are: a step adds two products to each sum. That is still one chain
//! over `k` for every output, whatever the number of rows; its bits are others than those of
//! multiply-adds of widened numbers.

use crate::{
    bf16,
    gemm::{
        accumulator::{Ahead, STRIP, Sums, TileKind, accumulate},
        amx_gemm::{TileLines, TiledProduct},
        panels::{Product, Share},
        plain_product::PlainProduct,
        register_tile::REGISTERS,
    },
    isa::{
        Isa,
        dispatch::Kernel,
        element::{Element, Packed},
    },
};

/// Numbers in a word.
const DEPTH: usize = <bf16 as Element>::Packed::DEPTH;

/// A share of a `bf16` layer's work, in pairs if the machine can.
pub(crate) struct Bf16DotOrFma<'a>(pub(crate) Share<'a, PlainProduct<'a, bf16>>);

impl Kernel for Bf16DotOrFma<'_> {
    type Output = ();

    const USES_BF16: bool = true;

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Share { product, target } = self.0;
        if const { I::HAS_PAIR_DOT } {
            let product = PairProduct(product);
            let share = Share { product, target };
            // For any number of rows: sums of tiles have other bits than those of pairs.
            if !share.run_by_tiles::<I>() {
                share.run::<I>();
            }
        } else {
            Share { product, target }.run::<I>();
        }
    }
}

/// Rows of pairs times the panels of a layer.
pub(crate) struct PairProduct<'a>(pub(crate) PlainProduct<'a, bf16>);

impl Product for PairProduct<'_> {
    type Unit = u32;

    const TILE: TileKind = TileKind::Pairs;

    #[inline(always)]
    fn units_per_row<I: Isa>(&self) -> usize {
        self.0.x.width().div_ceil(DEPTH).next_multiple_of(STRIP)
    }

    /// Copies R rows of x; zeros fill their last strips.
    #[inline(always)]
    fn pack<I: Isa, const R: usize>(&self, first: usize, packed: &mut [u32]) {
        let (strips, _) = packed.as_chunks_mut::<STRIP>();
        for r in 0..R {
            let (whole, rest) = self.0.x.row(first + r).as_chunks::<{ STRIP * DEPTH }>();
            let mut strips = strips.iter_mut().skip(r).step_by(R);
            for (numbers, strip) in whole.iter().zip(strips.by_ref()) {
                copy(numbers, strip);
            }
            if !rest.is_empty()
                && let Some(strip) = strips.next()
            {
                let mut numbers = [bf16::ZERO; STRIP * DEPTH];
                numbers[..rest.len()].copy_from_slice(rest);
                copy(&numbers, strip);
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
        let (x, _) = packed.as_chunks::<STRIP>().0.as_chunks::<R>();
        accumulate::<I, u32, u32, R, REGISTERS>([bias; R], x, lines)
    }
}

/// The numbers as pairs, at the start of `words`.
#[inline(always)]
fn copy(numbers: &[bf16], words: &mut [u32]) {
    for (packed, pair) in words.iter_mut().zip(numbers.as_chunks::<DEPTH>().0) {
        *packed = bf16::pack(pair);
    }
}

impl TiledProduct for PairProduct<'_> {
    #[inline(always)]
    fn in_features(&self) -> usize {
        self.0.x.width()
    }

    #[inline(always)]
    fn pack_line(&self, row: usize, lines: TileLines<'_>) {
        let (steps, _) = self.0.x.row(row).as_chunks::<32>();
        for (line, numbers) in lines.zip(steps) {
            copy(numbers, line);
        }
    }

    #[inline(always)]
    fn starts(&self, panel: usize, width: usize) -> &[f32] {
        self.0.bias(panel, width)
    }

    #[inline(always)]
    fn weights(&self, panel: usize, width: usize) -> &[u32] {
        self.0.weights(panel, width)
    }
}
