//! [`Tiles`] by instructions, in assembly: Rust's intrinsics for them are not stable.

use super::{INPUTS, NUM_TILES, ROWS, Tiles, WEIGHTS, WORDS, is_supported, span};
use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

/// Bytes of a word.
const WORD: usize = size_of::<u32>();

thread_local! {
    /// Whether there is a [`TileRegisters`] of this thread.
    static IN_USE: Cell<bool> = const { Cell::new(false) };
}

/// The tile registers of this thread.
///
/// SAFETY of its blocks: it exists only where [`TileRegisters::configure`] found the instructions, on the thread that
/// did, and once there: the tiles have the rows that it was configured with. The compiler puts nothing into tile
/// registers, since no function enables AMX for it, so they keep from one block to the next what these blocks put there.
/// Blocks that are not `pure` stay in their order.
pub(crate) struct TileRegisters {
    /// Rows of sums and inputs.
    rows: usize,
    /// What is in registers stays on its thread.
    _thread: PhantomData<*const ()>,
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configuration {
    fn new(rows: usize) -> Self {
        let mut configuration = Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for tile in 0..NUM_TILES {
            let rows = if tile < WEIGHTS { rows } else { ROWS };
            configuration.row_bytes[tile] = (WORDS * WORD) as u16;
            configuration.rows[tile] = rows as u8;
        }
        configuration
    }
}

impl Tiles for TileRegisters {
    /// # Panics
    /// If this machine has no AMX, or the thread's tiles are in use.
    fn configure(rows: usize) -> Self {
        assert!(is_supported(), "a machine with AMX");
        assert!((1..=ROWS).contains(&rows));
        assert!(!IN_USE.replace(true), "tiles of one use");
        let configuration = Configuration::new(rows);
        // SAFETY: the machine has the instruction; the configuration is a valid one of 64 bytes.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(readonly, nostack, preserves_flags));
        }
        Self {
            rows,
            _thread: PhantomData,
        }
    }

    #[inline(always)]
    fn start<const C: usize>(&mut self, row: &[f32]) {
        const { assert!(C < INPUTS) };
        let row = &row[..WORDS];
        // SAFETY: see the type; with a stride of 0 it reads this row alone.
        unsafe { load::<C>(row.as_ptr().cast(), 0) };
    }

    #[inline(always)]
    fn load_inputs<const A: usize>(&mut self, words: &[u32]) {
        const { assert!(INPUTS <= A && A < WEIGHTS) };
        let words = &words[..self.rows * WORDS];
        // SAFETY: see the type; the slice holds as many rows as the tile.
        unsafe { load::<A>(words.as_ptr(), WORDS) };
    }

    #[inline(always)]
    fn load_weights<const B: usize>(&mut self, words: &[u32], stride: usize) {
        const { assert!(WEIGHTS <= B && B < NUM_TILES) };
        let words = &words[..span(ROWS, stride)];
        // SAFETY: see the type; the slice reaches to the end of the last row.
        unsafe { load::<B>(words.as_ptr(), stride) };
    }

    #[inline(always)]
    fn multiply_add<const C: usize, const A: usize, const B: usize>(&mut self) {
        const { assert!(C < INPUTS && INPUTS <= A && A < WEIGHTS && WEIGHTS <= B && B < NUM_TILES) };
        // SAFETY: see the type; the three tiles are configured to fit each other.
        unsafe {
            asm!(
                "tdpbf16ps tmm{c}, tmm{a}, tmm{b}",
                c = const C, a = const A, b = const B,
                options(nomem, nostack, preserves_flags)
            );
        }
    }

    #[inline(always)]
    fn store<const C: usize>(&self, words: &mut [u32], stride: usize) {
        const { assert!(C < INPUTS) };
        let words = &mut words[..span(self.rows, stride)];
        // SAFETY: see the type; the slice reaches to the end of the last row.
        unsafe {
            asm!(
                "tilestored [{start} + {bytes}], tmm{c}",
                start = in(reg) words.as_mut_ptr(), bytes = in(reg) stride * WORD, c = const C,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// Loads the rows of a tile, `stride` words apart.
///
/// # Safety
/// The tile is configured, and the memory can be read.
#[inline(always)]
unsafe fn load<const T: usize>(start: *const u32, stride: usize) {
    // SAFETY: the promise to this function.
    unsafe {
        asm!(
            "tileloadd tmm{t}, [{start} + {bytes}]",
            start = in(reg) start, bytes = in(reg) stride * WORD, t = const T,
            options(readonly, nostack, preserves_flags)
        );
    }
}

impl Drop for TileRegisters {
    /// Leaves no tiles for the system to save with the thread.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: see the type.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        IN_USE.set(false);
    }
}
