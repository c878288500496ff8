//! Linear layers with weights packed once.
//!
//! ```text
//!   weight [N][K]  ->  panels of W outputs over the full K, each one stream of memory
//!
//!     panel 0            panel 1
//!     [K / D][W][D]      [K / D][W][D]      ...     D = 1 (f32) or 2 (bf16 pairs)
//! ```
//!
//! An output is one chain of multiply-adds over `k`, started at the bias, for any number of rows:
//! no blocking over K, no split sums. Threads take contiguous halves (thirds, ...) of the panels, so
//! that each core streams the same weights every step.

use crate::aligned::Aligned;
use crate::disjoint::Disjoint;
use crate::dispatch::{Kernel, dispatch};
use crate::element::Packed;
use crate::error::{ArgumentError, expect_equal};
use crate::isa::Isa;
use crate::pool;
use crate::rows::{Rows, RowsMut};
use crate::tile::{Panel, accumulate, balanced, with_rows};
use crate::{Element, bf16};
use std::ops::Range;

/// A panel is this many registers wide.
const REGISTERS: usize = 2;
/// Outputs of the widest panel.
const MAX_WIDTH: usize = 32;

/// How far ahead of its use memory is asked for, in bytes. The panels of a thread are one stream.
const AHEAD: isize = 2048;

/// Multiply-adds that are worth waking a thread for: some ten microseconds.
const GRAIN: usize = 1 << 17;

/// Rows whose packed activations a thread holds at a time.
const MAX_ROWS: usize = 240;

/// `y = x W^T + b`.
pub struct Linear<T: Element> {
    in_features: usize,
    out_features: usize,
    /// Outputs of a panel.
    width: usize,
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
        let width = dispatch(PanelWidth);
        let (out_features, in_features) = (weight.len(), weight.width());
        if out_features == 0 || in_features == 0 {
            let got = format_args!("[{out_features}, {in_features}]");
            return Err(ArgumentError::new(
                "weight",
                "at least one row and column",
                got,
            ));
        }
        let num_panels = out_features.div_ceil(width);
        let mut padded = Aligned::zeroed(num_panels * width);
        if let Some(bias) = bias {
            expect_equal("bias", "out_features,", out_features, bias.len())?;
            for (padded, number) in padded.iter_mut().zip(bias) {
                *padded = number.to_f32();
            }
        }
        let depth = in_features.div_ceil(T::Packed::DEPTH);
        let mut panels = Aligned::zeroed(num_panels * depth * width);
        let shared = Disjoint::new(&mut panels);
        pool::split(num_panels, 1, |range| {
            for panel in range {
                let units = panel * depth * width..(panel + 1) * depth * width;
                // SAFETY: each panel belongs to one part.
                let panel_units = unsafe { shared.take(units) };
                pack_panel(weight, panel * width, width, panel_units);
            }
        });
        Ok(Self {
            in_features,
            out_features,
            width,
            panels,
            bias: padded,
        })
    }

    /// Bytes of a packed layer: outputs fill whole panels, and each has a bias.
    pub fn packed_bytes(out_features: usize, in_features: usize) -> usize {
        let outputs = out_features.next_multiple_of(dispatch(PanelWidth));
        let depth = in_features.div_ceil(T::Packed::DEPTH);
        outputs * (depth * size_of::<T::Packed>() + size_of::<f32>())
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
        let stride = out.stride();
        let out = Disjoint::new(out.into_slice());
        let num_panels = self.out_features.div_ceil(self.width);
        let grain = GRAIN / (self.width * self.in_features * x.len().max(1));
        pool::split(num_panels, grain, |panels| {
            T::forward(Forward {
                layer: self,
                x,
                out: &out,
                stride,
                panels,
            });
        });
        Ok(())
    }
}

/// An element type whose layers are compiled here, once, and not in each crate that calls them.
pub trait LinearElement: Element {
    /// Computes one thread's panels.
    #[doc(hidden)]
    fn forward(share: Forward<'_, Self>);
}

impl LinearElement for f32 {
    fn forward(share: Forward<'_, Self>) {
        dispatch(share);
    }
}

impl LinearElement for bf16 {
    fn forward(share: Forward<'_, Self>) {
        dispatch(share);
    }
}

struct PanelWidth;

impl Kernel for PanelWidth {
    type Output = usize;

    #[inline(always)]
    fn run<I: Isa>(self) -> usize {
        REGISTERS * I::LANES
    }
}

/// Packs outputs `first..first + width` of the weight; what is beyond the weight stays zero.
fn pack_panel<T: Element>(
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

/// Where outputs go; called once per row and panel, so that the loops above are compiled only once
/// for all output types.
trait Store: Sync {
    /// Rounds and stores adjacent numbers.
    ///
    /// # Safety
    /// No other thread stores there meanwhile.
    unsafe fn store(&self, start: usize, numbers: &[f32]);
}

impl<O: Element> Store for Disjoint<'_, O> {
    unsafe fn store(&self, start: usize, numbers: &[f32]) {
        // SAFETY: the caller's promise; the slice does not outlive this call.
        let out = unsafe { self.take(start..start + numbers.len()) };
        for (out, &number) in out.iter_mut().zip(numbers) {
            *out = O::from_f32(number);
        }
    }
}

/// One thread's panels.
pub struct Forward<'a, T: Element> {
    layer: &'a Linear<T>,
    x: Rows<'a, T>,
    out: &'a dyn Store,
    stride: usize,
    panels: Range<usize>,
}

impl<T: Element> Kernel for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        assert_eq!(
            self.layer.width,
            REGISTERS * I::LANES,
            "packed for this set"
        );
        let in_features = self.layer.in_features;
        let mut packed = Aligned::zeroed(self.x.len().min(MAX_ROWS) * in_features);
        let mut done = 0;
        while done < self.x.len() {
            let rows = (self.x.len() - done).min(MAX_ROWS);
            for tile in balanced(rows, I::ROWS) {
                let numbers = &mut packed[tile.start * in_features..tile.end * in_features];
                with_rows!(I, tile.len(), |R| {
                    pack_rows::<T, R>(self.x, done + tile.start, numbers);
                });
            }
            for panel in self.panels.clone() {
                for tile in balanced(rows, I::ROWS) {
                    let numbers = &packed[tile.start * in_features..tile.end * in_features];
                    with_rows!(I, tile.len(), |R| {
                        self.tile::<I, R>(panel, done + tile.start, numbers);
                    });
                }
            }
            done += rows;
        }
    }
}

impl<T: Element> Forward<'_, T> {
    /// R rows times one panel.
    #[inline(always)]
    fn tile<I: Isa, const R: usize>(&self, panel: usize, first_row: usize, x: &[f32]) {
        let width = REGISTERS * I::LANES;
        let depth = self.layer.in_features.div_ceil(T::Packed::DEPTH);
        let units = &self.layer.panels[panel * depth * width..(panel + 1) * depth * width];
        let bias = &self.layer.bias[panel * width..(panel + 1) * width];
        let mut sums = [I::splat(0.0); REGISTERS];
        for n in 0..REGISTERS {
            sums[n] = I::load(&bias[n * I::LANES..]);
        }
        let (x, _) = x.as_chunks::<R>();
        let weights = Panel {
            units,
            ahead: AHEAD,
        };
        let lines = weights.lines(0, width, width);
        let sums = accumulate::<I, T::Packed, R, REGISTERS>([sums; R], x, lines);
        let columns = width.min(self.layer.out_features - panel * width);
        let mut row = [0.0; MAX_WIDTH];
        for (r, sums) in sums.into_iter().enumerate() {
            for n in 0..REGISTERS {
                I::store(sums[n], &mut row[n * I::LANES..]);
            }
            let start = (first_row + r) * self.stride + panel * width;
            // SAFETY: the columns of a panel belong to one part, which writes them here only.
            unsafe { self.out.store(start, &row[..columns]) };
        }
    }
}

/// Widens R rows of x to `[K][R]`.
#[inline(always)]
fn pack_rows<T: Element, const R: usize>(x: Rows<'_, T>, first: usize, packed: &mut [f32]) {
    let (packed, _) = packed.as_chunks_mut::<R>();
    for r in 0..R {
        for (packed, number) in packed.iter_mut().zip(x.row(first + r)) {
            packed[r] = number.to_f32();
        }
    }
}
