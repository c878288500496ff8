//! A linear layer in any of its forms, and several of them as one job.

use crate::{
    bf16,
    gemm::{
        grouped::GroupedLinear,
        linear::Linear,
        shares::{Target, split_layers},
    },
    memory::rows::{Rows, RowsMut},
};
use std::ops::Range;

/// `y = x W^T + b`, as its weights are packed.
pub enum Layer {
    /// In `f32`.
    Float32(Linear<f32>),
    /// In `bf16`.
    Bfloat16(Linear<bf16>),
    /// In quantized groups.
    Grouped(GroupedLinear),
}

impl Layer {
    /// Width of the input.
    pub fn in_features(&self) -> usize {
        match self {
            Self::Float32(layer) => layer.in_features(),
            Self::Bfloat16(layer) => layer.in_features(),
            Self::Grouped(layer) => layer.in_features(),
        }
    }

    /// Width of the output.
    pub fn out_features(&self) -> usize {
        match self {
            Self::Float32(layer) => layer.out_features(),
            Self::Bfloat16(layer) => layer.out_features(),
            Self::Grouped(layer) => layer.out_features(),
        }
    }

    /// Computes a share of the outputs; `rounded` holds the rows of `x` where the layer is in `bf16`.
    fn multiply(&self, x: Rows<'_, f32>, rounded: Rows<'_, bf16>, target: Target<'_>) {
        match self {
            Self::Float32(layer) => layer.multiply(x, target),
            Self::Bfloat16(layer) => layer.multiply(rounded, target),
            Self::Grouped(layer) => layer.multiply(&x, target),
        }
    }
}

/// Computes rows of `out` `[T, out_features]` from those of `x` `[T, in_features]`, some rows by each layer, as one
/// job of all threads. A layer in `bf16` rounds its inputs.
///
/// The layers must have one shape, which is that of `x` and `out`.
pub(crate) fn forward_each(
    layers: &[(&Layer, Range<usize>)],
    x: Rows<'_, f32>,
    out: RowsMut<'_, f32>,
) {
    let mut layers_alone = layers.iter().map(|(layer, _)| layer);
    let is_rounded = layers_alone.any(|layer| matches!(layer, Layer::Bfloat16(_)));
    let rounded = if is_rounded {
        round_rows(x)
    } else {
        RoundedRows::default()
    };
    let rounded = rounded.rows();
    let shape = (out.width(), x.width());
    let rows: Vec<_> = layers.iter().map(|(_, rows)| rows.clone()).collect();
    split_layers(shape, &rows, out, |layer, target| {
        layers[layer].0.multiply(x, rounded, target);
    });
}

/// Rows that are rounded, one after the other.
#[derive(Debug, Default)]
pub struct RoundedRows {
    numbers: Vec<bf16>,
    len: usize,
    width: usize,
}

impl RoundedRows {
    /// The rows.
    ///
    /// # Panics
    /// Never: the numbers are those of so many rows.
    pub fn rows(&self) -> Rows<'_, bf16> {
        Rows::new(&self.numbers, self.len, self.width, self.width).expect("as many numbers")
    }
}

/// Rounds the numbers of rows.
///
/// # Panics
/// Never: the numbers are those of so many rows.
pub fn round_rows(rows: Rows<'_, f32>) -> RoundedRows {
    let (len, width) = (rows.len(), rows.width());
    let mut rounded = vec![bf16::ZERO; len * width];
    let out = RowsMut::new(&mut rounded, len, width, width).expect("as many numbers");
    out.par_rows(|range| {
        for (row, out) in range {
            for (out, number) in out.iter_mut().zip(rows.row(row)) {
                *out = bf16::from_f32(*number);
            }
        }
    });
    RoundedRows {
        numbers: rounded,
        len,
        width,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_numbers_are_rounded_to_as_many() {
        let rounded = round_rows(Rows::new(&[], 3, 0, 0).expect("rows without numbers"));
        assert_eq!((rounded.rows().len(), rounded.rows().width()), (3, 0));
    }
}
