//! Linear layers with weights in eight or four bits, quantized once, at construction.
//!
//! `y = (sum over k of x_int w_int) * x_scale * w_scale + b`: inputs are quantized row by row as they
//! come, sums are integers and therefore exact. Neither the other rows nor the threads nor the
//! instruction set can change a bit of a row.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    gemm::{
        accumulator::{Ahead, Panel, Sums, Tile},
        int4::Int4,
        int8::Int8,
        linear::LinearElement,
        panels::{
            MAX_WIDTH, Product, REGISTERS, Share, expect_weight, packed_panels, padded_bias,
            panel_width, split_panels,
        },
        quantize::{Scale, scale_int8},
    },
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{
        aligned::Aligned,
        rows::{Rows, RowsMut},
    },
};
use std::marker::PhantomData;

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// Eight bits, a scale per output.
    Int8,
    /// Four bits, a scale per 32 inputs of an output.
    Int4,
}

/// How weights and inputs lie in words, and how they are multiplied.
pub(crate) trait WeightFormat: Sync {
    /// Sums of more products might not fit.
    const MAX_IN_FEATURES: usize;

    /// What a tile keeps in registers.
    const TILE: Tile;

    fn words_per_panel(in_features: usize, width: usize) -> usize;

    /// Quantizes one output's weights into its column of a zeroed panel; gives their scale.
    fn pack_column<T: Element>(
        weights: &[T],
        column: usize,
        width: usize,
        panel: &mut [u32],
    ) -> f32;

    /// Words of one row of inputs.
    fn words_per_row<I: Isa>(in_features: usize) -> usize;

    /// Quantizes row `r` of a tile.
    fn pack_row<I: Isa, T: Element, const R: usize>(
        numbers: &[T],
        scale: Scale,
        r: usize,
        packed: &mut [u32],
    );

    /// R packed rows times one panel, in units of the scales.
    fn tile<I: Isa, const R: usize>(panel: Panel<'_, u32>, x: &[u32]) -> Sums<I, R, REGISTERS>;
}

/// Most inputs of a layer in int8: sums over more might not fit 32 bits. In int4 there is no such limit.
pub const MAX_INT8_INPUTS: usize = Int8::MAX_IN_FEATURES;

/// `y = x W^T + b` with quantized weights.
pub struct QuantizedLinear {
    quantization: Quantization,
    in_features: usize,
    out_features: usize,
    words: Aligned<u32>,
    /// Per output, of whole panels.
    scales: Aligned<f32>,
    /// Of whole panels; zero where there is none.
    bias: Aligned<f32>,
}

impl QuantizedLinear {
    /// Quantizes `weight` `[out_features, in_features]` and packs it with `bias` `[out_features]`.
    ///
    /// # Errors
    /// If the shapes do not fit each other, or sums over so many inputs might not fit.
    pub fn new<T: Element>(
        weight: Rows<'_, T>,
        bias: Option<&[T]>,
        quantization: Quantization,
    ) -> Result<Self, ArgumentError> {
        match quantization {
            Quantization::Int8 => Self::pack::<T, Int8>(weight, bias, quantization),
            Quantization::Int4 => Self::pack::<T, Int4>(weight, bias, quantization),
        }
    }

    fn pack<T: Element, C: WeightFormat>(
        weight: Rows<'_, T>,
        bias: Option<&[T]>,
        quantization: Quantization,
    ) -> Result<Self, ArgumentError> {
        let width = panel_width();
        let (out_features, in_features) = (weight.len(), weight.width());
        expect_weight(out_features, in_features)?;
        if in_features > C::MAX_IN_FEATURES {
            let expected = format_args!("at most {} columns", C::MAX_IN_FEATURES);
            return Err(ArgumentError::new("weight", expected, in_features));
        }
        let bias = padded_bias(bias, out_features, width)?;
        let num_panels = out_features.div_ceil(width);
        let mut scales = Aligned::zeroed(num_panels * width);
        let shared = crate::memory::disjoint::Disjoint::new(&mut scales);
        let len = C::words_per_panel(in_features, width);
        let words = packed_panels(num_panels, len, |panel, words| {
            let first = panel * width;
            let columns = first..out_features.min(first + width);
            // SAFETY: each panel belongs to one part.
            let scales = unsafe { shared.take(columns) };
            dispatch(PackPanel::<T, C> {
                weight,
                first,
                scales,
                width,
                words,
                code: PhantomData,
            });
        });
        Ok(Self {
            quantization,
            in_features,
            out_features,
            words,
            scales,
            bias,
        })
    }

    /// Bytes of a packed layer: outputs fill whole panels, and each has a scale and a bias. None if no memory is
    /// so large.
    pub fn packed_bytes(
        out_features: usize,
        in_features: usize,
        quantization: Quantization,
    ) -> Option<usize> {
        // A number takes eight bytes at most, with its share of scales and sums.
        if in_features > isize::MAX as usize / MAX_WIDTH / size_of::<u64>() {
            return None;
        }
        let width = panel_width();
        let words = match quantization {
            Quantization::Int8 => Int8::words_per_panel(in_features, width),
            Quantization::Int4 => Int4::words_per_panel(in_features, width),
        };
        let panel = words * size_of::<u32>() + 2 * width * size_of::<f32>();
        out_features.div_ceil(width).checked_mul(panel)
    }

    /// Width of the input.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Width of the output.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Computes `out` `[T, out_features]` from `x` `[T, in_features]`.
    ///
    /// A row with a number that is not finite gives NaN.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn forward<T: LinearElement, O: Element>(
        &self,
        x: Rows<'_, T>,
        out: RowsMut<'_, O>,
    ) -> Result<(), ArgumentError> {
        expect_equal("x", "in_features,", self.in_features, x.width())?;
        expect_equal("out", "out_features,", self.out_features, out.width())?;
        expect_equal("out", "as many rows as x:", x.len(), out.len())?;
        let shape = (self.out_features, self.in_features);
        match self.quantization {
            Quantization::Int8 => split_panels(shape, out, |target| {
                let product = QuantizedProduct::new(self, x);
                T::multiply_int8(Share { product, target });
            }),
            Quantization::Int4 => split_panels(shape, out, |target| {
                let product = QuantizedProduct::new(self, x);
                T::multiply_int4(Share { product, target });
            }),
        }
        Ok(())
    }
}

/// Quantizes outputs `first..first + scales.len()` of a weight into a panel.
struct PackPanel<'a, T, C> {
    weight: Rows<'a, T>,
    first: usize,
    scales: &'a mut [f32],
    width: usize,
    words: &'a mut [u32],
    code: PhantomData<C>,
}

impl<T: Element, C: WeightFormat> Kernel for PackPanel<'_, T, C> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (column, scale) in self.scales.iter_mut().enumerate() {
            let weights = self.weight.row(self.first + column);
            *scale = C::pack_column(weights, column, self.width, self.words);
        }
    }
}

/// Rows times the panels of a layer.
pub(crate) struct QuantizedProduct<'a, T, C> {
    layer: &'a QuantizedLinear,
    pub(crate) x: Rows<'a, T>,
    code: PhantomData<C>,
}

impl<'a, T, C> QuantizedProduct<'a, T, C> {
    pub(crate) fn new(layer: &'a QuantizedLinear, x: Rows<'a, T>) -> Self {
        Self {
            layer,
            x,
            code: PhantomData,
        }
    }
}

impl<'a, T, C: WeightFormat> QuantizedProduct<'a, T, C> {
    /// The words of a panel.
    #[inline(always)]
    pub(crate) fn words(&self, panel: usize, width: usize) -> &'a [u32] {
        let len = C::words_per_panel(self.layer.in_features, width);
        &self.layer.words[panel * len..(panel + 1) * len]
    }
}

impl<T: Element, C: WeightFormat> Product for QuantizedProduct<'_, T, C> {
    type Unit = u32;

    const TILE: Tile = C::TILE;

    #[inline(always)]
    fn units_per_row<I: Isa>(&self) -> usize {
        C::words_per_row::<I>(self.layer.in_features)
    }

    #[inline(always)]
    fn pack<I: Isa, const R: usize>(&self, first: usize, packed: &mut [u32], scales: &mut [f32]) {
        for r in 0..R {
            let row = self.x.row(first + r);
            let scale = scale_int8(row);
            scales[r] = scale.unit;
            C::pack_row::<I, T, R>(row, scale, r, packed);
        }
    }

    #[inline(always)]
    fn tile<I: Isa, const R: usize>(
        &self,
        panel: usize,
        ahead: Ahead,
        packed: &[u32],
    ) -> Sums<I, R, REGISTERS> {
        let panel = Panel {
            units: self.words(panel, REGISTERS * I::WORDS),
            ahead,
        };
        C::tile::<I, R>(panel, packed)
    }

    #[inline(always)]
    fn finish<I: Isa>(
        &self,
        panel: usize,
        scale: f32,
        sums: [I::Vector; REGISTERS],
    ) -> [I::Vector; REGISTERS] {
        let mut outputs = sums;
        for n in 0..REGISTERS {
            let column = (panel * REGISTERS + n) * I::LANES;
            let w_scale = I::load(&self.layer.scales[column..]);
            let bias = I::load(&self.layer.bias[column..]);
            // Each operation rounds, as in the twin: a product plus -0 and a sum times 1 are exact.
            let output = I::mul_add_lanes(outputs[n], I::splat(scale), I::splat(-0.0));
            let output = I::mul_add_lanes(output, w_scale, I::splat(-0.0));
            outputs[n] = I::mul_add_lanes(output, I::splat(1.0), bias);
        }
        outputs
    }
}
