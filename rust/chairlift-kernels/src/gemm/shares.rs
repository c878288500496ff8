//! Which thread computes which outputs of linear layers, and where they go.
//!
//! Few rows are all rows; of many each thread takes some, if it can, and packs only these.
//!
//! ```text
//!   panels                  0 . . . . . . . . . . . . . . .        four threads
//!   fewer than 48 rows      [ first ][second ][ third ][fourth ]     all rows
//!
//!   48 rows or more         [     first      ][     second     ]     one half of the rows
//!                           [     third      ][     fourth     ]     the other
//!
//!   several layers          [   rows of a    ][   of b   ][   c  ]   a thread takes panels that follow each other,
//!                           [ first  ][second ][ third ][ fourth ]   perhaps of several layers
//! ```

use crate::{
    Element, bf16,
    gemm::register_tile::{MAX_WIDTH, REGISTERS, panel_width},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch, noinline},
    },
    memory::{disjoint::Disjoint, pool, rows::RowsMut},
};
use std::ops::Range;

/// Multiply-adds that are worth waking a thread for: some ten microseconds.
pub(crate) const GRAIN: usize = 1 << 17;

/// Rows for which it pays to read all weights once more: computing with them takes longer by far.
const ROWS_PER_READER: usize = 96;

/// Rows for which it pays to read all weights twice: a thread that takes half of the rows packs half as many inputs.
const ROWS_OF_TWO_READERS: usize = 48;

/// Rows of which threads pack a part each, where inputs are rounded: with fewer, waiting for the others takes as long.
const MIN_ROWS_PACKED_ONCE: usize = 16;

/// Rows that take as long to compute with as it takes to read the weights, about.
const ROWS_PER_READING: usize = 8;

/// Gives each thread its share of the rows and panels: `out` `[num_rows, out_features]`.
pub(crate) fn split_panels<O: Element>(
    (out_features, in_features): (usize, usize),
    out: RowsMut<'_, O>,
    task: impl Fn(Target<'_>) + Sync,
) {
    let width = panel_width();
    let (num_rows, stride) = (out.len(), out.stride());
    let out = Disjoint::new(out.into_slice());
    let grain = GRAIN / (width * in_features * num_rows).max(1);
    let num_panels = out_features.div_ceil(width);
    let readers = num_readers(num_rows, pool::num_threads());
    pool::split(readers * num_panels, grain * readers, |items| {
        for reader in items.start / num_panels..items.end.div_ceil(num_panels) {
            let first = reader * num_panels;
            task(Target {
                out: &out,
                bf16: O::as_bf16(&out),
                stride,
                out_features,
                width,
                rows: reader * num_rows / readers..(reader + 1) * num_rows / readers,
                panels: items.start.max(first) - first..items.end.min(first + num_panels) - first,
            });
        }
    });
}

/// Gives each thread its share of the panels of several layers of one shape, each of which has its rows of `out`
/// `[num_rows, out_features]`: `task(layer, target)`.
///
/// # Panics
/// If the rows of a layer do not begin behind those of the layer before.
pub(crate) fn split_layers<O: Element>(
    (out_features, in_features): (usize, usize),
    rows: &[Range<usize>],
    out: RowsMut<'_, O>,
    task: impl Fn(usize, Target<'_>) + Sync,
) {
    let width = panel_width();
    let num_panels = out_features.div_ceil(width);
    let cost = |rows: &Range<usize>| ROWS_PER_READING + rows.len();
    assert!(
        rows.windows(2).all(|pair| pair[0].end <= pair[1].start),
        "rows of one layer each"
    );
    let total = num_panels * rows.iter().map(cost).sum::<usize>();
    let work = out.len().saturating_mul(out_features * in_features);
    let parts = pool::num_threads().min(work.div_ceil(GRAIN));
    let stride = out.stride();
    let out = Disjoint::new(out.into_slice());
    pool::run(parts, &|part| {
        let mut start = 0;
        for (layer, rows) in rows.iter().enumerate() {
            let cost = cost(rows);
            // The first panel whose cost begins at a place or behind it.
            let panel = |place: usize| place.saturating_sub(start).div_ceil(cost).min(num_panels);
            let panels = panel(part * total / parts)..panel((part + 1) * total / parts);
            if !panels.is_empty() {
                let rows = rows.clone();
                task(
                    layer,
                    Target {
                        out: &out,
                        bf16: O::as_bf16(&out),
                        stride,
                        out_features,
                        width,
                        rows,
                        panels,
                    },
                );
            }
            start += num_panels * cost;
        }
    });
}

/// Whether threads that need all rows are to pack them once, and not each for itself.
pub(crate) fn packs_once(num_rows: usize) -> bool {
    (MIN_ROWS_PACKED_ONCE..ROWS_OF_TWO_READERS).contains(&num_rows) && pool::num_threads() > 1
}

/// How often all panels are read, each time by as many threads, for other rows.
fn num_readers(num_rows: usize, threads: usize) -> usize {
    let min_readers = if num_rows < ROWS_OF_TWO_READERS { 1 } else { 2 };
    let max_readers = (num_rows / ROWS_PER_READER).max(min_readers).min(threads);
    let mut counts = (1..=max_readers).rev();
    counts
        .find(|&count| threads.is_multiple_of(count))
        .unwrap_or(1)
}

/// Where one thread's outputs go, and which they are.
pub(crate) struct Target<'a> {
    out: &'a dyn Store,
    /// The same output, if its numbers are `bf16`.
    bf16: Option<&'a Disjoint<'a, bf16>>,
    stride: usize,
    out_features: usize,
    /// Columns of a panel.
    width: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) panels: Range<usize>,
}

impl Target<'_> {
    /// Stores the outputs of some rows, from `first_row` on, and a panel.
    ///
    /// # Panics
    /// If they are not among those of this thread.
    #[inline(always)]
    pub(crate) fn store<I: Isa>(&self, panel: usize, first_row: usize, rows: &[[f32; MAX_WIDTH]]) {
        let width = REGISTERS * I::LANES;
        assert!(
            self.panels.contains(&panel)
                && width == self.width
                && self.rows.start <= first_row
                && first_row + rows.len() <= self.rows.end,
            "outputs of this thread"
        );
        let columns = width.min(self.out_features - panel * width);
        let start = first_row * self.stride + panel * width;
        if let Some(out) = self.bf16
            && columns == width
        {
            noinline::<I, _>(RoundPanel {
                out,
                start,
                stride: self.stride,
                rows,
            });
            return;
        }
        // SAFETY: these rows and panels are this target's, as asserted, and no other target has both: see
        // `split_panels` and `split_layers`, which alone make targets and do not copy them. A thread stores one tile
        // after the other.
        unsafe { self.out.store(start, self.stride, columns, rows) };
    }
}

/// Where outputs go; called once per tile, so that the loops above are compiled only once for all output types.
trait Store: Sync {
    /// Rounds the first `columns` numbers of each row and stores them, rows `stride` apart.
    ///
    /// # Safety
    /// No other thread stores there meanwhile.
    unsafe fn store(&self, start: usize, stride: usize, columns: usize, rows: &[[f32; MAX_WIDTH]]);
}

impl<O: Element> Store for Disjoint<'_, O> {
    unsafe fn store(&self, start: usize, stride: usize, columns: usize, rows: &[[f32; MAX_WIDTH]]) {
        dispatch(Round {
            out: self,
            start,
            stride,
            columns,
            rows,
        });
    }
}

/// Rounds the rows of a tile to the type of the output.
struct Round<'a, 'out, O> {
    out: &'a Disjoint<'out, O>,
    start: usize,
    stride: usize,
    columns: usize,
    rows: &'a [[f32; MAX_WIDTH]],
}

impl<O: Element> Kernel for Round<'_, '_, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (r, numbers) in self.rows.iter().enumerate() {
            let start = self.start + r * self.stride;
            // SAFETY: the promise to `store`; the slice does not outlive this turn.
            let out = unsafe { self.out.take(start..start + self.columns) };
            for (out, number) in out.iter_mut().zip(numbers) {
                *out = O::from_f32(*number);
            }
        }
    }
}

/// Rounds the rows of a tile to `bf16`, with all columns of its panel: most outputs are such, and registers are stored whole.
struct RoundPanel<'a, 'out> {
    out: &'a Disjoint<'out, bf16>,
    start: usize,
    stride: usize,
    rows: &'a [[f32; MAX_WIDTH]],
}

impl Kernel for RoundPanel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (r, numbers) in self.rows.iter().enumerate() {
            let start = self.start + r * self.stride;
            // SAFETY: `Target::store`, which alone makes this, has asserted that the places are those of its thread; the
            // slice does not outlive this turn.
            let out = unsafe { self.out.take(start..start + REGISTERS * I::LANES) };
            I::store_rounded([I::load(numbers), I::load(&numbers[I::LANES..])], out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::Mutex,
    };

    /// Stores one row.
    struct StoreRow<'a, 'b> {
        target: &'a Target<'b>,
        panel: usize,
        row: usize,
    }

    impl Kernel for StoreRow<'_, '_> {
        type Output = ();

        fn run<I: Isa>(self) {
            let numbers = [[1.0; MAX_WIDTH]];
            self.target.store::<I>(self.panel, self.row, &numbers);
        }
    }

    #[test]
    fn a_thread_cannot_store_the_outputs_of_another() {
        let rows = [0..1, 1..3];
        let out_features = 2 * panel_width();
        let mut out = vec![0.0_f32; 4 * out_features];
        let out = RowsMut::contiguous(&mut out, out_features);
        split_layers((out_features, 1), &rows, out, |_, target| {
            let panels = target.panels.start.saturating_sub(1)..target.panels.end + 1;
            for panel in panels {
                for row in 0..4 {
                    let is_of_target = target.panels.contains(&panel) && target.rows.contains(&row);
                    let target = &target;
                    let store = AssertUnwindSafe(|| dispatch(StoreRow { target, panel, row }));
                    assert_eq!(
                        catch_unwind(store).is_ok(),
                        is_of_target,
                        "panel {panel}, row {row}"
                    );
                }
            }
        });
    }

    #[test]
    #[should_panic(expected = "rows of one layer each")]
    fn layers_cannot_have_a_row_in_common() {
        let mut out = [0.0_f32; 48];
        let out = RowsMut::contiguous(&mut out, 16);
        split_layers((16, 1), &[0..2, 1..3], out, |_, _| {});
    }

    #[test]
    fn each_panel_of_each_layer_is_computed_once() {
        for rows in [vec![0..1, 1..2, 2..3], vec![0..40, 40..41, 41..44]] {
            let num_panels = 5;
            let out_features = num_panels * panel_width() - 1;
            let mut out = vec![0.0_f32; rows.last().expect("some").end * out_features];
            let seen = Mutex::new(vec![vec![0; num_panels]; rows.len()]);
            let out = RowsMut::contiguous(&mut out, out_features);
            split_layers((out_features, 1 << 16), &rows, out, |layer, target| {
                assert_eq!(target.rows, rows[layer]);
                let mut seen = seen.lock().expect("no panic");
                target.panels.for_each(|panel| seen[layer][panel] += 1);
            });
            let seen = seen.into_inner().expect("no panic");
            assert!(seen.iter().flatten().all(|&count| count == 1), "{seen:?}");
        }
    }
}
