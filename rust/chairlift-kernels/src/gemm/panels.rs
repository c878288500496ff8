//! How a linear layer walks over its weights, whatever they are stored as.
//!
//! ```text
//!   weight [N][K]  ->  panels of W outputs over the full K, each one stream of memory
//!
//!     panel 0          panel 1          ...          a thread takes a contiguous share of them
//!     [K / D][W][D]    [K / D][W][D]
//! ```
//!
//! Each thread packs the rows of the input that it needs for itself (a copy that cores share costs more
//! than it saves), then multiplies every tile of them by every panel of its share ([`crate::gemm::shares`]).
//! Inputs that are rounded while they are packed cost more: of some rows threads pack a part each, and share it
//! ([`multiply_packed_once`]).

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    gemm::{
        accumulator::{Ahead, MAX_TILE_ROWS, Sums, TileKind, balanced, with_rows},
        register_tile::{MAX_WIDTH, REGISTERS},
        shares::{Target, split_panels},
    },
    isa::{
        Isa,
        dispatch::{Kernel, dispatch, noinline},
    },
    memory::{aligned::Aligned, disjoint::Disjoint, pool, rows::RowsMut},
};
use bytemuck::Zeroable;
use std::cell::Cell;
use std::hint::black_box;
use std::ops::Range;

/// How far ahead of its use memory is asked for where one tile has all rows: the panels of a thread are
/// one stream. A core that reads 40 GB/s gets 4 KiB while memory takes 100 ns to answer; less than twice
/// that leaves it waiting between two products.
pub(crate) const AHEAD: Ahead = Ahead::Bytes(8192);

/// Rows whose packed activations a thread holds at a time.
pub(crate) const MAX_ROWS: usize = 240;

/// Rows of numbers times panels of weights.
pub(crate) trait Product: Sync {
    /// A unit of packed input.
    type Unit: Scratch;

    /// What a tile keeps in registers.
    const TILE: TileKind;

    /// Units of one packed row.
    fn units_per_row<I: Isa>(&self) -> usize;

    /// Packs R rows from `first` on, side by side.
    fn pack<I: Isa, const R: usize>(&self, first: usize, packed: &mut [Self::Unit]);

    /// R packed rows times one panel.
    fn tile<I: Isa, const R: usize>(
        &self,
        panel: usize,
        ahead: Ahead,
        packed: &[Self::Unit],
    ) -> Sums<I, R, REGISTERS>;
}

/// Fails unless a weight has something to pack.
pub(crate) fn expect_weight(out_features: usize, in_features: usize) -> Result<(), ArgumentError> {
    if out_features > 0 && in_features > 0 {
        return Ok(());
    }
    let got = format_args!("[{out_features}, {in_features}]");
    Err(ArgumentError::new(
        "weight",
        "at least one row and column",
        got,
    ))
}

/// A bias for whole panels; zero where there is none.
pub(crate) fn padded_bias<T: Element>(
    bias: Option<&[T]>,
    out_features: usize,
    width: usize,
) -> Result<Aligned<f32>, ArgumentError> {
    let mut padded = Aligned::zeroed(out_features.next_multiple_of(width));
    if let Some(bias) = bias {
        expect_equal("bias", "out_features,", out_features, bias.len())?;
        for (padded, number) in padded.iter_mut().zip(bias) {
            *padded = number.to_f32();
        }
    }
    Ok(padded)
}

/// Allocates panels of `len` units each and has threads fill them: `pack(panel, units)`.
///
/// # Panics
/// Never: the panels are adjacent rows.
pub(crate) fn packed_panels<U: Zeroable + Copy + Send + Sync>(
    num_panels: usize,
    len: usize,
    pack: impl Fn(usize, &mut [U]) + Sync,
) -> Aligned<U> {
    let mut panels = Aligned::zeroed(num_panels * len);
    let rows = RowsMut::new(&mut panels, num_panels, len, len).expect("adjacent rows");
    rows.par_rows_by(1, |rows| {
        for (panel, units) in rows {
            pack(panel, units);
        }
    });
    panels
}

/// One thread's part of a product.
pub(crate) struct Share<'a, P> {
    pub(crate) product: P,
    pub(crate) target: Target<'a>,
}

impl<P: Product> Kernel for Share<'_, P> {
    type Output = ();

    const USES_DOT: bool = P::TILE.uses_dot();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let target = &self.target.rows;
        let len = target.len().min(MAX_ROWS) * self.product.units_per_row::<I>();
        let mut packed = P::Unit::take_scratch(len);
        for first in target.clone().step_by(MAX_ROWS) {
            let rows = first..target.end.min(first + MAX_ROWS);
            self.multiply::<I>(rows, &mut packed);
        }
        P::Unit::return_scratch(packed);
    }
}

impl<P: Product> Share<'_, P> {
    #[inline(always)]
    fn multiply<I: Isa>(&self, rows: Range<usize>, packed: &mut [P::Unit]) {
        let Self { product, target } = self;
        noinline::<I, _>(PackTiles {
            product,
            rows: rows.clone(),
            tiles: 0..rows.len().div_ceil(P::TILE.max_rows::<I>()),
            units: Disjoint::new(packed),
        });
        noinline::<I, _>(MultiplyPacked {
            product,
            target,
            rows,
            packed,
        });
    }
}

/// Sums of a tile in memory, such that no register is stored over two lines of the cache.
#[repr(align(64))]
struct TileSums([[f32; MAX_WIDTH]; MAX_TILE_ROWS]);

/// Multiplies packed rows by the panels of a thread.
struct MultiplyPacked<'a, P: Product> {
    product: &'a P,
    target: &'a Target<'a>,
    rows: Range<usize>,
    packed: &'a [P::Unit],
}

impl<P: Product> Kernel for MultiplyPacked<'_, P> {
    type Output = ();

    const USES_DOT: bool = P::TILE.uses_dot();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self {
            product,
            target,
            rows,
            packed,
        } = self;
        let max_rows = P::TILE.max_rows::<I>();
        let len = product.units_per_row::<I>();
        let mut sums = TileSums([[0.0; MAX_WIDTH]; MAX_TILE_ROWS]);
        for panel in target.panels.clone() {
            let tiles = rows.len().div_ceil(max_rows);
            for (index, tile) in balanced(rows.len(), max_rows).enumerate() {
                let first = rows.start + tile.start;
                let units = &packed[tile.start * len..tile.end * len];
                let ahead = if tiles == 1 {
                    AHEAD
                } else {
                    Ahead::NextPanel { tile: index, tiles }
                };
                let rows = &mut sums.0[..tile.len()];
                with_rows!(P::TILE.max_rows::<I>(), tile.len(), |R| {
                    noinline::<I, _>(Tile::<P, R> {
                        product,
                        panel,
                        ahead,
                        packed: units,
                        sums: rows,
                    });
                });
                target.store::<I>(panel, first, rows);
            }
        }
    }
}

/// A line of the cache.
#[repr(align(64))]
struct Line([f32; 16]);

/// Multiplies R packed rows by one panel.
///
/// Compiled apart from tiles of other heights: its loop gets the same registers whatever is around it.
struct Tile<'a, P: Product, const R: usize> {
    product: &'a P,
    panel: usize,
    ahead: Ahead,
    packed: &'a [P::Unit],
    sums: &'a mut [[f32; MAX_WIDTH]],
}

impl<P: Product, const R: usize> Kernel for Tile<'_, P, R> {
    type Output = ();

    const USES_DOT: bool = P::TILE.uses_dot();

    #[inline(always)]
    fn run<I: Isa>(self) {
        // With a local that is aligned to a line, registers that the compiler spills are aligned as well: those that were
        // stored over two lines, or two pages, took a fifth of some tiles' time.
        black_box(&Line([0.0; 16]).0);
        let sums = self
            .product
            .tile::<I, R>(self.panel, self.ahead, self.packed);
        let rows = &mut self.sums[..R];
        for r in 0..R {
            for n in 0..REGISTERS {
                I::store(sums[r][n], &mut rows[r][n * I::LANES..]);
            }
        }
    }
}

/// Multiplies all rows by all panels; each thread packs some of the rows, and all read them.
///
/// Shapes: `out` `[num_rows, out_features]`, of at most [`MAX_ROWS`].
pub(crate) fn multiply_packed_once<P: Product, O: Element>(
    product: &P,
    shape: (usize, usize),
    out: RowsMut<'_, O>,
) {
    let num_rows = out.len();
    let packed = dispatch(PackRows { product, num_rows });
    split_panels(shape, out, |target| {
        dispatch(SharePacked {
            product,
            target,
            packed: &packed,
        });
    });
    P::Unit::return_scratch(packed);
}

/// Packs all rows of a product, a part on each thread.
struct PackRows<'a, P> {
    product: &'a P,
    num_rows: usize,
}

impl<P: Product> Kernel for PackRows<'_, P> {
    type Output = Aligned<P::Unit>;

    const USES_DOT: bool = P::TILE.uses_dot();

    #[inline(always)]
    fn run<I: Isa>(self) -> Aligned<P::Unit> {
        let Self { product, num_rows } = self;
        let mut packed = P::Unit::take_scratch(num_rows * product.units_per_row::<I>());
        let units = Disjoint::new(&mut packed[..]);
        let num_tiles = num_rows.div_ceil(P::TILE.max_rows::<I>());
        pool::split(num_tiles, 1, |tiles| {
            dispatch(PackTiles {
                product,
                rows: 0..num_rows,
                tiles,
                units,
            });
        });
        packed
    }
}

/// Packs some tiles of some rows of a product.
struct PackTiles<'a, P: Product> {
    product: &'a P,
    rows: Range<usize>,
    tiles: Range<usize>,
    units: Disjoint<'a, P::Unit>,
}

impl<P: Product> Kernel for PackTiles<'_, P> {
    type Output = ();

    const USES_DOT: bool = P::TILE.uses_dot();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let len = self.product.units_per_row::<I>();
        let tiles = balanced(self.rows.len(), P::TILE.max_rows::<I>());
        for tile in tiles.skip(self.tiles.start).take(self.tiles.len()) {
            // SAFETY: tiles have no row in common, and each is of one part: `PackRows` splits them by `pool::split`, and
            // `Share` packs all of them itself. One tile at a time is alive here.
            let units = unsafe { self.units.take(tile.start * len..tile.end * len) };
            with_rows!(P::TILE.max_rows::<I>(), tile.len(), |R| self
                .product
                .pack::<I, R>(self.rows.start + tile.start, units));
        }
    }
}

/// One thread's part of a product whose rows are packed.
struct SharePacked<'a, P: Product> {
    product: &'a P,
    target: Target<'a>,
    packed: &'a [P::Unit],
}

impl<P: Product> Kernel for SharePacked<'_, P> {
    type Output = ();

    const USES_DOT: bool = P::TILE.uses_dot();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let rows = self.target.rows.clone();
        let len = self.product.units_per_row::<I>();
        assert!(
            rows.start == 0 && rows.len() * len <= self.packed.len(),
            "a part of all rows, whose tiles are those that were packed"
        );
        noinline::<I, _>(MultiplyPacked {
            product: self.product,
            target: &self.target,
            rows,
            packed: self.packed,
        });
    }
}

/// A unit of which each thread keeps a buffer from call to call: fresh memory would have to be
/// zeroed, and mapped page by page.
pub(crate) trait Scratch: Zeroable + Copy + Send + Sync {
    /// At least `len` units of any content.
    fn take_scratch(len: usize) -> Aligned<Self>;

    /// Leaves a buffer for the next call.
    fn return_scratch(buffer: Aligned<Self>);
}

macro_rules! implement_scratch {
    ($Unit:ty, $KEPT:ident) => {
        thread_local! {
            static $KEPT: Cell<Aligned<$Unit>> = Cell::new(Aligned::zeroed(0));
        }

        impl Scratch for $Unit {
            fn take_scratch(len: usize) -> Aligned<Self> {
                let kept = $KEPT.replace(Aligned::zeroed(0));
                if kept.len() < len {
                    Aligned::zeroed(len)
                } else {
                    kept
                }
            }

            fn return_scratch(buffer: Aligned<Self>) {
                $KEPT.set(buffer);
            }
        }
    };
}

implement_scratch!(f32, NUMBERS);
implement_scratch!(u32, WORDS);
