//! Rows of numbers times the panels of a layer in `f32` or `bf16`, by single multiply-adds.

use crate::{
    Element,
    error::ArgumentError,
    gemm::{
        accumulator::{Ahead, Panel, PanelLines, STRIP, Sums, TileKind, accumulate},
        panels::{Product, expect_weight, packed_panels, padded_bias},
        register_tile::{REGISTERS, panel_width},
    },
    isa::{Isa, element::Packed},
    memory::{aligned::Aligned, rows::Rows},
};

/// The panels of a layer.
pub(crate) struct PlainWeights<T: Element> {
    pub(crate) in_features: usize,
    panels: Aligned<T::Packed>,
    /// Padded to whole panels; zeros if the layer has no bias.
    bias: Aligned<f32>,
}

impl<T: Element> PlainWeights<T> {
    /// Packs `weight` `[out_features, in_features]` and `bias` `[out_features]`.
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub(crate) fn new(weight: Rows<'_, T>, bias: Option<&[T]>) -> Result<Self, ArgumentError> {
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
            panels,
            bias,
        })
    }
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
    pub(crate) weights: &'a PlainWeights<T>,
    pub(crate) x: Rows<'a, T>,
}

impl<'a, T: Element> PlainProduct<'a, T> {
    /// The bias of a panel.
    #[inline(always)]
    pub(crate) fn bias(&self, panel: usize, width: usize) -> &'a [f32] {
        &self.weights.bias[panel * width..(panel + 1) * width]
    }

    /// The weights of a panel.
    #[inline(always)]
    pub(crate) fn weights(&self, panel: usize, width: usize) -> &'a [T::Packed] {
        let len = self.weights.in_features.div_ceil(T::Packed::DEPTH) * width;
        &self.weights.panels[panel * len..(panel + 1) * len]
    }

    /// The bias and the weights of a panel.
    #[inline(always)]
    pub(crate) fn panel<I: Isa>(
        &self,
        panel: usize,
        ahead: Ahead,
    ) -> ([I::Vector; REGISTERS], PanelLines<'a, T::Packed>) {
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

    const TILE: TileKind = TileKind::Floats;

    #[inline(always)]
    fn units_per_row<I: Isa>(&self) -> usize {
        self.weights.in_features.next_multiple_of(STRIP)
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
