//! Both products of an update of low rank, by tiles of rows of one adapter.

use super::{LowRank, SortedRows};
use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    gemm::{
        accumulator::{Panel, STRIP, accumulate, balanced, with_rows},
        panels::{AHEAD, Scratch},
        shares::GRAIN,
    },
    isa::{
        BLOCK, Isa,
        dispatch::{Kernel, dispatch},
        element::Packed,
    },
    memory::{
        aligned::Aligned,
        disjoint::Disjoint,
        pool,
        rows::{Rows, RowsMut},
    },
};
use std::cell::Cell;
use std::ops::Range;

/// Rows of one adapter that are computed together.
struct RowTile<'a, T: Element> {
    update: &'a LowRank<T>,
    /// Pairs of `(slot, row)`.
    rows: &'a [(usize, usize)],
    /// Where its numbers begin in the hidden ones.
    hidden: usize,
}

/// Adds to rows of `out` `[R, out_features]` the updates of their adapters to `x` `[R, in_features]`.
///
/// `updates` are those of the slots from 1 on. A slot that has none adds nothing.
///
/// # Errors
/// If the shapes do not fit, or a slot is not one of `updates`.
pub fn add<T: Element, X: Element, O: Element>(
    updates: &[Option<&LowRank<T>>],
    rows: &SortedRows,
    x: Rows<'_, X>,
    out: RowsMut<'_, O>,
) -> Result<(), ArgumentError> {
    expect_equal("out", "as many rows as x:", x.len(), out.len())?;
    let (mut tiles, mut hidden_len) = (Vec::new(), 0);
    for rows in rows.as_slice().chunk_by(|one, other| one.0 == other.0) {
        let slot = rows[0].0;
        let Some(update) = updates.get(slot - 1) else {
            let expected = format_args!("slots in 0..={}", updates.len());
            return Err(ArgumentError::new("adapters", expected, slot));
        };
        let Some(update) = update.filter(|update| !update.is_empty()) else {
            continue;
        };
        expect_equal("x", "in_features,", update.in_features, x.width())?;
        expect_equal("out", "out_features,", update.out_features, out.width())?;
        if let Some((_, row)) = rows.iter().find(|(_, row)| *row >= x.len()) {
            let expected = format_args!("rows in 0..{}", x.len());
            return Err(ArgumentError::new("adapters", expected, row));
        }
        for part in balanced(rows.len(), max_tile_rows()) {
            tiles.push(RowTile {
                update,
                rows: &rows[part.clone()],
                hidden: hidden_len,
            });
            hidden_len += part.len() * update.hidden_len();
        }
    }
    if tiles.is_empty() {
        return Ok(());
    }
    let mut kept = HIDDEN.replace(Aligned::zeroed(0));
    if kept.len() < hidden_len {
        kept = Aligned::zeroed(hidden_len);
    }
    let hidden = Disjoint::new(&mut kept[..hidden_len]);
    let work = tiles.iter().map(|tile| tile.rows.len()).max().unwrap_or(1) * BLOCK;
    split(
        &tiles,
        LowRank::hidden_panels,
        work * x.width(),
        |tile, items| {
            let packed = packed_rows(tile, x);
            dispatch(Shrink {
                tile,
                packed: &packed,
                hidden,
                items,
            });
            f32::return_scratch(packed);
        },
    );
    let (stride, out) = (out.stride(), Disjoint::new(out.into_slice()));
    let max_rank = |tile: &RowTile<'_, T>| tile.update.parts.iter().map(|part| part.rank).max();
    let rank = tiles.iter().filter_map(max_rank).max().unwrap_or(1);
    split(
        &tiles,
        LowRank::output_panels,
        work * rank,
        |tile, items| {
            let len = tile.rows.len() * tile.update.hidden_len();
            let rows = OutRows {
                out,
                stride,
                rows: tile.rows,
            };
            dispatch(Expand {
                tile,
                hidden: &kept[tile.hidden..tile.hidden + len],
                out: &rows,
                items,
            });
        },
    );
    HIDDEN.set(kept);
    Ok(())
}

thread_local! {
    /// The hidden numbers of a call, kept for the next one.
    static HIDDEN: Cell<Aligned<f32>> = Cell::new(Aligned::zeroed(0));
}

/// Shares the panels of all tiles among threads; `task` gets a tile and some of its panels.
fn split<T: Element>(
    tiles: &[RowTile<'_, T>],
    num_panels: impl Fn(&LowRank<T>) -> usize,
    work_per_panel: usize,
    task: impl Fn(&RowTile<'_, T>, Range<usize>) + Sync,
) {
    let mut ends = Vec::with_capacity(tiles.len());
    let mut end = 0;
    for tile in tiles {
        end += num_panels(tile.update);
        ends.push(end);
    }
    pool::split(end, GRAIN / work_per_panel.max(1), |items| {
        let mut at = items.start;
        let mut tile = ends.partition_point(|&end| end <= at);
        while at < items.end {
            let first = if tile == 0 { 0 } else { ends[tile - 1] };
            let end = ends[tile].min(items.end);
            task(&tiles[tile], at - first..end - first);
            (at, tile) = (end, tile + 1);
        }
    });
}

/// Rows of a tile at most on this machine.
fn max_tile_rows() -> usize {
    struct MaxTileRows;

    impl Kernel for MaxTileRows {
        type Output = usize;

        #[inline(always)]
        fn run<I: Isa>(self) -> usize {
            I::ROWS
        }
    }

    dispatch(MaxTileRows)
}

/// The rows of a tile in strips, widened; zeros fill their last strips.
fn packed_rows<T: Element, X: Element>(tile: &RowTile<'_, T>, x: Rows<'_, X>) -> Aligned<f32> {
    let num_rows = tile.rows.len();
    let mut packed = f32::take_scratch(num_rows * x.width().next_multiple_of(STRIP));
    for (r, &(_, row)) in tile.rows.iter().enumerate() {
        let strips = packed.as_chunks_mut::<STRIP>().0.iter_mut().skip(r);
        let numbers = x.row(row).chunks(STRIP);
        for (strip, numbers) in strips.step_by(num_rows).zip(numbers) {
            let (whole, rest) = strip.split_at_mut(numbers.len());
            for (packed, number) in whole.iter_mut().zip(numbers) {
                *packed = number.to_f32();
            }
            rest.fill(0.0);
        }
    }
    packed
}

/// `hidden = scale * x A^T` of some panels of a tile.
struct Shrink<'a, T: Element> {
    tile: &'a RowTile<'a, T>,
    packed: &'a [f32],
    hidden: Disjoint<'a, f32>,
    items: Range<usize>,
}

impl<T: Element> Kernel for Shrink<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        with_rows!(I::ROWS, self.tile.rows.len(), |R| self.rows::<I, R>());
    }
}

impl<T: Element> Shrink<'_, T> {
    #[inline(always)]
    fn rows<I: Isa, const R: usize>(&self) {
        let (tile, in_features) = (self.tile, self.tile.update.in_features);
        let x = &self.packed[..R * in_features.next_multiple_of(STRIP)];
        let len = in_features.div_ceil(T::Packed::DEPTH) * BLOCK;
        let (mut first_panel, mut first_number) = (0, tile.hidden);
        for part in &tile.update.parts {
            let panels = first_panel..first_panel + part.hidden_panels();
            for item in self.items.start.max(panels.start)..self.items.end.min(panels.end) {
                let panel = item - panels.start;
                let units = &part.a[panel * len..(panel + 1) * len];
                let sums = panel_sums::<I, T::Packed, R>(x, units);
                let (strip, place) = (panel * BLOCK / STRIP, panel * BLOCK % STRIP);
                for (r, sums) in sums.iter().enumerate() {
                    let start = first_number + (strip * R + r) * STRIP + place;
                    // SAFETY: the hidden numbers of a tile begin behind those of the tile before, and each panel of a
                    // tile belongs to one part of the job.
                    let hidden = unsafe { self.hidden.take(start..start + BLOCK) };
                    for (hidden, sum) in hidden.iter_mut().zip(sums) {
                        *hidden = part.scale * sum;
                    }
                }
            }
            first_panel = panels.end;
            first_number += R * part.hidden_len();
        }
    }
}

/// Panels whose sums are added at a time.
const PANELS_AT_ONCE: usize = 8;

/// `out += hidden B^T` of some panels of a tile.
struct Expand<'a, T: Element> {
    tile: &'a RowTile<'a, T>,
    hidden: &'a [f32],
    out: &'a dyn AddTo,
    items: Range<usize>,
}

impl<T: Element> Kernel for Expand<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        with_rows!(I::ROWS, self.tile.rows.len(), |R| self.rows::<I, R>());
    }
}

impl<T: Element> Expand<'_, T> {
    #[inline(always)]
    fn rows<I: Isa, const R: usize>(&self) {
        let mut sums = [[[0.0; BLOCK]; PANELS_AT_ONCE]; R];
        let (mut first_panel, mut hidden) = (0, self.hidden);
        for part in &self.tile.update.parts {
            let panels = first_panel..first_panel + part.output_panels();
            let (of_part, rest) = hidden.split_at(R * part.hidden_len());
            let len = part.rank.div_ceil(T::Packed::DEPTH) * BLOCK;
            let mine = self.items.start.max(panels.start)..self.items.end.min(panels.end);
            for start in mine.clone().step_by(PANELS_AT_ONCE) {
                let first = start - panels.start;
                for panel in first..first + PANELS_AT_ONCE.min(mine.end - start) {
                    let units = &part.b[panel * len..(panel + 1) * len];
                    let of_panel = panel_sums::<I, T::Packed, R>(of_part, units);
                    for (sums, of_row) in sums.iter_mut().zip(of_panel) {
                        sums[panel - first] = of_row;
                    }
                }
                let from = part.outputs.start + first * BLOCK;
                let end = part.outputs.start + (mine.end - panels.start) * BLOCK;
                let end = end.min(from + PANELS_AT_ONCE * BLOCK).min(part.outputs.end);
                // SAFETY: a panel of a tile belongs to one part of the job, and a row to one tile (`SortedRows` has each
                // row once). The panels of one update have columns of their own (`LowRank::push`).
                unsafe { self.out.add(from..end, sums.as_flattened()) };
            }
            (first_panel, hidden) = (panels.end, rest);
        }
    }
}

/// Rows of the output; called once for some panels, so that the loops above are compiled only once for all types.
trait AddTo: Sync {
    /// Adds `PANELS_AT_ONCE` panels of sums per row to so many columns.
    ///
    /// # Safety
    /// No other thread has these rows and columns meanwhile.
    unsafe fn add(&self, columns: Range<usize>, sums: &[[f32; BLOCK]]);
}

/// The rows of a tile.
struct OutRows<'a, O> {
    out: Disjoint<'a, O>,
    stride: usize,
    rows: &'a [(usize, usize)],
}

impl<O: Element> AddTo for OutRows<'_, O> {
    unsafe fn add(&self, columns: Range<usize>, sums: &[[f32; BLOCK]]) {
        for (&(_, row), sums) in self.rows.iter().zip(sums.chunks(PANELS_AT_ONCE)) {
            let start = row * self.stride;
            // SAFETY: the promise of the caller.
            let out = unsafe { self.out.take(start + columns.start..start + columns.end) };
            for (out, sum) in out.iter_mut().zip(sums.as_flattened()) {
                *out = O::from_f32(out.to_f32() + sum);
            }
        }
    }
}

/// R packed rows times a panel of 16 outputs.
#[inline(always)]
fn panel_sums<I: Isa, P: Packed, const R: usize>(x: &[f32], units: &[P]) -> [[f32; BLOCK]; R] {
    match BLOCK / I::LANES {
        1 => sums_in::<I, P, R, 1>(x, units),
        2 => sums_in::<I, P, R, 2>(x, units),
        _ => sums_in::<I, P, R, 4>(x, units),
    }
}

#[inline(always)]
fn sums_in<I: Isa, P: Packed, const R: usize, const N: usize>(
    x: &[f32],
    units: &[P],
) -> [[f32; BLOCK]; R] {
    let (strips, _) = x.as_chunks::<STRIP>().0.as_chunks::<R>();
    let lines = Panel {
        units,
        ahead: AHEAD,
    }
    .lines(N * I::LANES);
    let sums = accumulate::<I, f32, P, R, N>([[I::splat(0.0); N]; R], strips, lines);
    let mut numbers = [[0.0; BLOCK]; R];
    for (numbers, sums) in numbers.iter_mut().zip(sums) {
        for (numbers, sums) in numbers.chunks_mut(I::LANES).zip(sums) {
            I::store(sums, numbers);
        }
    }
    numbers
}
