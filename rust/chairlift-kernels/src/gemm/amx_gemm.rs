//! How a linear layer walks over its weights where whole tiles are multiplied ([`crate::isa::amx`]).
//!
//! ```text
//!     rows of x      one panel
//!                    [ left | right ]     a step: 16 lines of a panel, 32 values of k
//!     [ top    ] --> [ sums | sums  ]
//!     [ bottom ] --> [ sums | sums  ]     a block: two tiles of rows, or one, times a panel
//! ```
//!
//! Shares and panels are those of [`crate::gemm::panels`]. Every sum is one chain over the steps in ascending order, whatever
//! the number of rows. All tiles of rows are equally high, so that a thread configures its tiles once; rows of
//! zeros fill the last one.

use crate::{
    gemm::{
        accumulator::{Ahead, Panel},
        panels::{AHEAD, MAX_ROWS, Product, Scratch, Share},
        register_tile::{MAX_WIDTH, REGISTERS},
    },
    isa::Isa,
    isa::amx::{self, Tiles},
};

/// Rows of numbers times panels of weights, by tiles.
pub(crate) trait TiledProduct: Product<Unit = u32> {
    /// Width of the input.
    fn in_features(&self) -> usize;

    /// Packs a row of the input: 16 words at the start of each line, one line per step.
    fn pack_line(&self, row: usize, lines: TileLines<'_>);

    /// What the sums of a panel start with.
    fn starts(&self, panel: usize, width: usize) -> &[f32];

    /// The words of a panel.
    fn weights(&self, panel: usize, width: usize) -> &[u32];
}

/// The lines of a row in packed inputs.
pub(crate) type TileLines<'a> = std::slice::ChunksMut<'a, u32>;

/// Values of `k` in a step.
const STEP_DEPTH: usize = amx::WORDS * amx::DEPTH;

/// Whether a panel is two tiles wide.
const fn is_wide<I: Isa>() -> bool {
    REGISTERS * I::LANES == 2 * amx::WORDS
}

impl<P: TiledProduct> Share<'_, P> {
    /// Does the work by tiles if they are for it, on a machine that has them; says whether it did.
    #[inline(always)]
    pub(crate) fn run_by_tiles<I: Isa>(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use crate::isa::{dispatch::instruction_set, set::InstructionSet};

            if self.fits_tiles() && instruction_set() == InstructionSet::Amx {
                self.run_by::<I, amx::TileRegisters>();
                return true;
            }
        }
        false
    }

    /// Whether the inputs are whole steps.
    pub(crate) fn fits_tiles(&self) -> bool {
        self.product.in_features().is_multiple_of(STEP_DEPTH)
    }

    /// Does the work by tiles.
    #[inline(always)]
    pub(crate) fn run_by<I: Isa, T: Tiles>(&self) {
        let rows = &self.target.rows;
        let steps = self.product.in_features() / STEP_DEPTH;
        let largest = Cut::new(rows.len().min(MAX_ROWS), steps);
        let mut packed = u32::take_scratch(largest.num_words());
        for first in rows.clone().step_by(MAX_ROWS) {
            let cut = Cut::new((rows.end - first).min(MAX_ROWS), steps);
            let packed = &mut packed[..cut.num_words()];
            pack(&self.product, first, cut, packed);
            let pass = Pass {
                share: self,
                first,
                cut,
                packed,
            };
            let mut tiles = T::configure(cut.height);
            for panel in self.target.panels.clone() {
                pass.multiply::<I, T>(&mut tiles, panel);
            }
        }
        u32::return_scratch(packed);
    }
}

/// Rows in tiles of equal height.
#[derive(Clone, Copy)]
struct Cut {
    num_rows: usize,
    num_tiles: usize,
    /// Rows of a tile, some of zeros in the last.
    height: usize,
    /// Words of a packed tile.
    len: usize,
}

impl Cut {
    fn new(num_rows: usize, steps: usize) -> Self {
        let num_tiles = num_rows.div_ceil(amx::ROWS);
        let height = num_rows.div_ceil(num_tiles.max(1));
        Self {
            num_rows,
            num_tiles,
            height,
            len: steps * height * amx::WORDS,
        }
    }

    fn num_words(&self) -> usize {
        self.num_tiles * self.len
    }
}

/// Packs rows from `first` on: tile by tile, in a tile step by step.
#[inline(always)]
fn pack<P: TiledProduct>(product: &P, first: usize, cut: Cut, packed: &mut [u32]) {
    for (tile, words) in packed.chunks_mut(cut.len).enumerate() {
        for r in 0..cut.height {
            let row = tile * cut.height + r;
            let lines = words[r * amx::WORDS..].chunks_mut(cut.height * amx::WORDS);
            if row < cut.num_rows {
                product.pack_line(first + row, lines);
            } else {
                lines.for_each(|line| line[..amx::WORDS].fill(0));
            }
        }
    }
}

/// Packed rows, all of which are multiplied by one panel after the other.
struct Pass<'a, 'b, P> {
    share: &'a Share<'b, P>,
    first: usize,
    cut: Cut,
    packed: &'a [u32],
}

impl<P: TiledProduct> Pass<'_, '_, P> {
    #[inline(always)]
    fn multiply<I: Isa, T: Tiles>(&self, tiles: &mut T, panel: usize) {
        let num_blocks = self.cut.num_tiles.div_ceil(2);
        for (block, words) in self.packed.chunks(2 * self.cut.len).enumerate() {
            let ahead = if num_blocks == 1 {
                AHEAD
            } else {
                Ahead::NextPanel {
                    tile: block,
                    tiles: num_blocks,
                }
            };
            let (top, bottom) = words.split_at(self.cut.len);
            if bottom.is_empty() {
                self.multiply_block::<I, T, false>(tiles, panel, ahead, top, bottom);
            } else {
                self.multiply_block::<I, T, true>(tiles, panel, ahead, top, bottom);
                self.store::<I, T, 2, 3>(tiles, panel, 2 * block + 1);
            }
            self.store::<I, T, 0, 1>(tiles, panel, 2 * block);
        }
    }

    /// One tile of rows, or two where the block is tall, times a panel.
    #[inline(always)]
    fn multiply_block<I: Isa, T: Tiles, const TALL: bool>(
        &self,
        tiles: &mut T,
        panel: usize,
        ahead: Ahead,
        top: &[u32],
        bottom: &[u32],
    ) {
        let width = REGISTERS * I::LANES;
        let product = &self.share.product;
        start::<I, T, TALL>(tiles, product.starts(panel, width));
        let weights = Panel {
            units: product.weights(panel, width),
            ahead,
        };
        let len = amx::ROWS * width;
        for (step, lines) in weights.lines(len).enumerate() {
            let inputs = step * self.cut.height * amx::WORDS;
            tiles.load_weights::<6>(lines, width);
            tiles.load_inputs::<4>(&top[inputs..]);
            tiles.multiply_add::<0, 4, 6>();
            if const { is_wide::<I>() } {
                tiles.load_weights::<7>(&lines[amx::WORDS..], width);
                tiles.multiply_add::<1, 4, 7>();
            }
            if TALL {
                tiles.load_inputs::<5>(&bottom[inputs..]);
                tiles.multiply_add::<2, 5, 6>();
                if const { is_wide::<I>() } {
                    tiles.multiply_add::<3, 5, 7>();
                }
            }
        }
    }

    /// Stores the outputs of a tile of rows, whose sums are in tiles L and R.
    #[inline(always)]
    fn store<I: Isa, T: Tiles, const L: usize, const R: usize>(
        &self,
        tiles: &T,
        panel: usize,
        tile: usize,
    ) {
        let mut words = [[0; MAX_WIDTH]; amx::ROWS];
        tiles.store::<L>(words.as_flattened_mut(), MAX_WIDTH);
        if const { is_wide::<I>() } {
            let right = &mut words.as_flattened_mut()[amx::WORDS..];
            tiles.store::<R>(right, MAX_WIDTH);
        }
        let start = tile * self.cut.height;
        let rows = start..self.cut.num_rows.min(start + self.cut.height);
        let mut numbers = [[0.0; MAX_WIDTH]; amx::ROWS];
        for r in 0..rows.len() {
            numbers[r] = words[r].map(f32::from_bits);
        }
        let numbers = &numbers[..rows.len()];
        self.share
            .target
            .store::<I>(panel, self.first + rows.start, numbers);
    }
}

/// Starts the sums of a block, all rows alike.
#[inline(always)]
fn start<I: Isa, T: Tiles, const TALL: bool>(tiles: &mut T, starts: &[f32]) {
    tiles.start::<0>(starts);
    if TALL {
        tiles.start::<2>(starts);
    }
    if const { is_wide::<I>() } {
        let starts = &starts[amx::WORDS..];
        tiles.start::<1>(starts);
        if TALL {
            tiles.start::<3>(starts);
        }
    }
}

#[cfg(test)]
mod tests;
