//! Updates of low rank beside a linear layer (`LoRA`: Hu et al., 2021), of several adapters in one batch.
//!
//! ```text
//!   rows of the batch     2 0 1 2 0 1 1          0: the layer alone
//!   sorted by adapter     [ 1: 2, 5, 6 ]  [ 2: 0, 3 ]
//!
//!   hidden = scale * x A^T         A [rank, in_features]     panels of 16 of the rank
//!   out   += hidden B^T            B [outputs, rank]         panels of 16 outputs
//! ```
//!
//! Both products are one chain of multiply-adds per number, over `k` in ascending order, and the sum is rounded once
//! when it is added to `out`: the bits of a row depend on that row and its adapter alone. Rows of the layer alone are
//! not touched.

mod add;

pub use add::add;

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    gemm::{accumulator::STRIP, panels::packed_panels, plain_product::pack_panel},
    isa::{BLOCK, element::Packed},
    memory::{aligned::Aligned, rows::Rows},
};
use std::ops::Range;

/// Packed numbers of an update for neighbouring outputs of a layer.
struct LowRankPart<T: Element> {
    rank: usize,
    outputs: Range<usize>,
    scale: f32,
    a: Aligned<T::Packed>,
    b: Aligned<T::Packed>,
}

impl<T: Element> LowRankPart<T> {
    /// Panels of the rank.
    fn hidden_panels(&self) -> usize {
        self.rank.div_ceil(BLOCK)
    }

    fn output_panels(&self) -> usize {
        self.outputs.len().div_ceil(BLOCK)
    }

    /// Numbers that a row of `hidden` takes.
    fn hidden_len(&self) -> usize {
        self.rank.next_multiple_of(STRIP)
    }
}

/// What an adapter adds to one layer, which may be several with the same inputs and outputs side by side.
pub struct LowRank<T: Element> {
    in_features: usize,
    out_features: usize,
    parts: Vec<LowRankPart<T>>,
}

impl<T: Element> LowRank<T> {
    /// An update that adds nothing yet.
    pub fn new(in_features: usize, out_features: usize) -> Self {
        Self {
            in_features,
            out_features,
            parts: Vec::new(),
        }
    }

    /// Packs `scale * x A^T B^T` for the outputs from `first` on: `a` `[rank, in_features]`, `b` `[outputs, rank]`.
    ///
    /// # Errors
    /// If the shapes do not fit the layer or each other, or the outputs begin before the end of the part before.
    pub fn push(
        &mut self,
        first: usize,
        scale: f32,
        a: Rows<'_, T>,
        b: Rows<'_, T>,
    ) -> Result<(), ArgumentError> {
        let (rank, outputs) = (a.len(), first..first.saturating_add(b.len()));
        expect_equal("a", "in_features,", self.in_features, a.width())?;
        expect_equal("b", "the rows of a,", rank, b.width())?;
        if rank == 0 || b.is_empty() {
            return Err(ArgumentError::new("a, b", "at least one row", "none"));
        }
        let free = self.parts.last().map_or(0, |part| part.outputs.end);
        if first < free || outputs.end > self.out_features {
            let expected = format_args!("outputs in {free}..{}", self.out_features);
            return Err(ArgumentError::new(
                "b",
                expected,
                format_args!("{outputs:?}"),
            ));
        }
        self.parts.push(LowRankPart {
            rank,
            outputs,
            scale,
            a: packed(a),
            b: packed(b),
        });
        Ok(())
    }

    /// Bytes of a packed part. None if no memory is so large.
    pub fn part_bytes(outputs: usize, in_features: usize, rank: usize) -> Option<usize> {
        let panels = |len: usize, depth: usize| {
            let units = depth
                .div_ceil(T::Packed::DEPTH)
                .checked_mul(size_of::<T::Packed>())?;
            len.checked_next_multiple_of(BLOCK)?.checked_mul(units)
        };
        panels(rank, in_features)?.checked_add(panels(outputs, rank)?)
    }

    /// Whether it changes any output.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn hidden_panels(&self) -> usize {
        self.parts.iter().map(LowRankPart::hidden_panels).sum()
    }

    fn output_panels(&self) -> usize {
        self.parts.iter().map(LowRankPart::output_panels).sum()
    }

    fn hidden_len(&self) -> usize {
        self.parts.iter().map(LowRankPart::hidden_len).sum()
    }
}

/// Panels of a weight `[outputs, inputs]`, 16 outputs wide.
fn packed<T: Element>(weight: Rows<'_, T>) -> Aligned<T::Packed> {
    let len = weight.width().div_ceil(T::Packed::DEPTH) * BLOCK;
    packed_panels(weight.len().div_ceil(BLOCK), len, |panel, units| {
        pack_panel(weight, panel * BLOCK, BLOCK, units);
    })
}

/// The adapters of the rows of a batch, by slot; slot 0 is the layer alone.
#[derive(Clone, Copy)]
pub struct RowAdapters<'a> {
    /// The slot of each token.
    pub slots: &'a [i32],
    /// The token of each row; none where they are the same.
    pub selected: Option<&'a [i32]>,
}

/// The rows of a batch that have an adapter, with their slots, from 1 on, sorted by both: each row once.
///
/// [`RowAdapters::sorted`] alone makes one. `add` relies on it: rows of one tile belong to one thread.
///
/// ```compile_fail,E0308
/// # use chairlift_kernels::{Rows, RowsMut, gemm::low_rank::{LowRank, add}};
/// let mut out = [0.0_f32; 4];
/// let (x, out) = (Rows::contiguous(&[0.0_f32; 4], 2), RowsMut::contiguous(&mut out, 2));
/// let rows = [(1, 0), (2, 0), (1, 0)];
/// add::<f32, f32, f32>(&[None, None], &rows, x, out);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortedRows(Vec<(usize, usize)>);

impl SortedRows {
    /// The pairs of `(slot, row)`.
    pub fn as_slice(&self) -> &[(usize, usize)] {
        &self.0
    }
}

impl RowAdapters<'_> {
    /// Rows that there are.
    fn len(&self) -> usize {
        self.selected.map_or(self.slots.len(), <[i32]>::len)
    }

    /// The slot of a row.
    fn slot(&self, row: usize) -> Result<usize, ArgumentError> {
        let token = self
            .selected
            .map_or(Some(row), |selected| usize::try_from(selected[row]).ok());
        let slot = token.and_then(|token| self.slots.get(token));
        let slot = slot.and_then(|&slot| usize::try_from(slot).ok());
        slot.ok_or_else(|| {
            ArgumentError::new("adapters", "a slot for each row", format_args!("row {row}"))
        })
    }

    /// The rows that have an adapter, with their slots, sorted by both.
    ///
    /// # Errors
    /// If a row is not one of the tokens, or a slot is above `num_slots`.
    pub fn sorted(&self, num_slots: usize) -> Result<SortedRows, ArgumentError> {
        // Each row is visited once.
        let mut rows = Vec::new();
        for row in 0..self.len() {
            match self.slot(row)? {
                0 => {}
                slot if slot <= num_slots => rows.push((slot, row)),
                slot => {
                    let expected = format_args!("slots in 0..={num_slots}");
                    return Err(ArgumentError::new("adapters", expected, slot));
                }
            }
        }
        rows.sort_unstable();
        Ok(SortedRows(rows))
    }
}
