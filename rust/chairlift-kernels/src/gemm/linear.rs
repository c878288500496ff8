//! Linear layers in `f32` and `bf16`, with weights packed once.
//!
//! An output is one chain of multiply-adds over `k`, started at the bias, for any number of rows:
//! no split sums. (Machines with dot products of `bf16` pairs add two at a time: `pairs.rs`.) Panels
//! ([`crate::gemm::panels`]) hold single numbers (`f32`) or pairs along `k` (`bf16`).

use crate::{
    Element, bf16,
    error::{ArgumentError, expect_equal},
    gemm::{
        accumulator::{Ahead, Lines, Panel, STRIP, Sums, Tile, accumulate},
        bf16_pairs::PerhapsInPairs,
        panels::{
            Product, REGISTERS, Share, expect_weight, packed_panels, padded_bias, panel_width,
        },
        shares::split_panels,
    },
    isa::{Isa, dispatch::dispatch, element::Packed},
    memory::{
        aligned::Aligned,
        rows::{Rows, RowsMut},
    },
};

/// `y = x W^T + b`.
pub struct Linear<T: Element> {
    in_features: usize,
    out_features: usize,
    panels: Aligned<T::Packed>,
    /// Of whole panels; zero where there is none.
    bias: Aligned<f32>,
}

impl<T: LinearElement> Linear<T> {
    /// Packs `weight` `[out_features, in_features]` and `bias` `[out_features]`.
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn new(weight: Rows<'_, T>, bias: Option<&[T]>) -> Result<Self, ArgumentError> {
        let width = panel_width();
        let (out_features, in_features) = (weight.len(), weight.width());
        expect_weight(out_features, in_features)?;
        let bias = padded_bias(bias, out_features, width)?;
        let len = in_features.div_ceil(T::Packed::DEPTH) * width;
        let panels = packed_panels(out_features.div_ceil(width), len, |panel, units| {
            pack_panel(weight, panel * width, width, units);
        });
        Ok(Self {
            in_features,
            out_features,
            panels,
            bias,
        })
    }

    /// Bytes of a packed layer: outputs fill whole panels, and each has a bias. None if no memory is so large.
    pub fn packed_bytes(out_features: usize, in_features: usize) -> Option<usize> {
        let outputs = out_features.checked_next_multiple_of(panel_width())?;
        let depth = in_features.div_ceil(T::Packed::DEPTH);
        let weights = depth.checked_mul(size_of::<T::Packed>())?;
        outputs.checked_mul(weights.checked_add(size_of::<f32>())?)
    }

    /// Width of the input.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Width of the output.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Computes `out` `[T, out_features]` from `x` `[T, in_features]`; rounds once, at the end.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn forward<O: Element>(
        &self,
        x: Rows<'_, T>,
        out: RowsMut<'_, O>,
    ) -> Result<(), ArgumentError> {
        expect_equal("x", "in_features,", self.in_features, x.width())?;
        expect_equal("out", "out_features,", self.out_features, out.width())?;
        expect_equal("out", "as many rows as x:", x.len(), out.len())?;
        split_panels((self.out_features, self.in_features), out, |target| {
            let product = PlainProduct { layer: self, x };
            T::multiply(Share { product, target });
        });
        Ok(())
    }
}

/// An element type whose layers are compiled here, once, and not in each crate that calls them.
#[allow(
    private_interfaces,
    reason = "what a share is concerns this crate alone"
)]
pub trait LinearElement: Element {
    #[doc(hidden)]
    fn multiply(share: Share<'_, PlainProduct<'_, Self>>);
}

macro_rules! implement {
    ($($T:ty: $kernel:expr;)*) => {$(
        #[allow(private_interfaces, reason = "see the trait")]
        impl LinearElement for $T {
            fn multiply(share: Share<'_, PlainProduct<'_, Self>>) {
                dispatch($kernel(share));
            }
        }
    )*};
}

implement! {
    f32: std::convert::identity;
    bf16: PerhapsInPairs;
}

/// Packs outputs `first..first + width` of the weight; what is beyond the weight stays zero.
pub(crate) fn pack_panel<T: Element>(
    weight: Rows<'_, T>,
    first: usize,
    width: usize,
    panel: &mut [T::Packed],
) {
    let depth = T::Packed::DEPTH;
    let mut parts = [T::default(); 2];
    for column in 0..width.min(weight.len() - first) {
        let row = weight.row(first + column);
        for (k, numbers) in row.chunks(depth).enumerate() {
            parts.fill(T::default());
            parts[..numbers.len()].copy_from_slice(numbers);
            panel[k * width + column] = T::pack(&parts[..depth]);
        }
    }
}

/// Rows times the panels of a layer.
pub(crate) struct PlainProduct<'a, T: Element> {
    pub(crate) layer: &'a Linear<T>,
    pub(crate) x: Rows<'a, T>,
}

impl<'a, T: Element> PlainProduct<'a, T> {
    /// The bias of a panel.
    #[inline(always)]
    pub(crate) fn bias(&self, panel: usize, width: usize) -> &'a [f32] {
        &self.layer.bias[panel * width..(panel + 1) * width]
    }

    /// The weights of a panel.
    #[inline(always)]
    pub(crate) fn weights(&self, panel: usize, width: usize) -> &'a [T::Packed] {
        let len = self.layer.in_features.div_ceil(T::Packed::DEPTH) * width;
        &self.layer.panels[panel * len..(panel + 1) * len]
    }

    /// The bias and the weights of a panel.
    #[inline(always)]
    pub(crate) fn panel<I: Isa>(
        &self,
        panel: usize,
        ahead: Ahead,
    ) -> ([I::Vector; REGISTERS], Lines<'a, T::Packed>) {
        let width = REGISTERS * I::LANES;
        let bias = self.bias(panel, width);
        let mut starts = [I::splat(0.0); REGISTERS];
        for n in 0..REGISTERS {
            starts[n] = I::load(&bias[n * I::LANES..]);
        }
        let units = self.weights(panel, width);
        let weights = Panel { units, ahead };
        (starts, weights.lines(width))
    }
}

impl<T: Element> Product for PlainProduct<'_, T> {
    type Unit = f32;

    const TILE: Tile = Tile::Floats;

    #[inline(always)]
    fn units_per_row<I: Isa>(&self) -> usize {
        self.layer.in_features.next_multiple_of(STRIP)
    }

    /// Widens R rows of x; zeros fill their last strips.
    #[inline(always)]
    fn pack<I: Isa, const R: usize>(&self, first: usize, packed: &mut [f32]) {
        let (strips, _) = packed.as_chunks_mut::<STRIP>();
        for r in 0..R {
            let row = self.x.row(first + r).chunks(STRIP);
            for (strip, numbers) in strips.iter_mut().skip(r).step_by(R).zip(row) {
                let (whole, rest) = strip.split_at_mut(numbers.len());
                for (packed, number) in whole.iter_mut().zip(numbers) {
                    *packed = number.to_f32();
                }
                rest.fill(0.0);
            }
        }
    }

    #[inline(always)]
    fn tile<I: Isa, const R: usize>(
        &self,
        panel: usize,
        ahead: Ahead,
        packed: &[f32],
    ) -> Sums<I, R, REGISTERS> {
        let (bias, lines) = self.panel::<I>(panel, ahead);
        let (x, _) = packed.as_chunks::<STRIP>().0.as_chunks::<R>();
        accumulate::<I, f32, T::Packed, R, REGISTERS>([bias; R], x, lines)
    }
}
