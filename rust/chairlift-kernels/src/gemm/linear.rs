//! Linear layers in `f32` and `bf16`, with weights packed once.
//!
//! An output is one chain of multiply-adds over `k`, started at the bias, for any number of rows:
//! no split sums. (Machines with dot products of `bf16` pairs add two at a time: `bf16_pairs.rs`.) Panels
//! ([`crate::gemm::panels`]) hold single numbers (`f32`) or pairs along `k` (`bf16`).

use crate::{
    Element, bf16,
    error::{ArgumentError, expect_equal},
    gemm::{
        bf16_pairs::Bf16DotOrFma,
        panels::Share,
        plain_product::{PlainProduct, PlainWeights},
        register_tile::panel_width,
        shares::{Target, split_panels},
    },
    isa::{dispatch::dispatch, element::Packed},
    memory::rows::{Rows, RowsMut},
};

/// `y = x W^T + b`.
pub struct Linear<T: Element> {
    weights: PlainWeights<T>,
    out_features: usize,
}

impl<T: LinearElement> Linear<T> {
    /// Packs `weight` `[out_features, in_features]` and `bias` `[out_features]`.
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn new(weight: Rows<'_, T>, bias: Option<&[T]>) -> Result<Self, ArgumentError> {
        Ok(Self {
            weights: PlainWeights::new(weight, bias)?,
            out_features: weight.len(),
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
        self.weights.in_features
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
        expect_equal("x", "in_features,", self.in_features(), x.width())?;
        expect_equal("out", "out_features,", self.out_features, out.width())?;
        expect_equal("out", "as many rows as x:", x.len(), out.len())?;
        split_panels((self.out_features, self.in_features()), out, |target| {
            self.multiply(x, target);
        });
        Ok(())
    }

    /// Computes a share of the outputs.
    pub(crate) fn multiply(&self, x: Rows<'_, T>, target: Target<'_>) {
        let product = self.product(x);
        T::multiply(Share { product, target });
    }

    pub(crate) fn product<'a>(&'a self, x: Rows<'a, T>) -> PlainProduct<'a, T> {
        let weights = &self.weights;
        PlainProduct { weights, x }
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
    bf16: Bf16DotOrFma;
}
