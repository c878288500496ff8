//! AMX: registers of rows, and products of whole tiles (Intel Sapphire Rapids and later).
//!
//! ```text
//!                 B: 16 rows of 16 words, a row per two k
//!                 [ . . . . . . . . ]          of 16 outputs, as they lie in a panel
//!     A           [ . . . . . . . . ]
//!   [ . . . ] --> [ . . . . . . . . ]
//!   up to 16      C: a sum per row of A and output
//!   rows of 64 bytes
//! ```
//!
//! There are eight such registers. Four hold sums here, two inputs and two weights: 32 rows times 32
//! outputs, for which each step loads four tiles and multiplies four times.
//!
//! [`Tiles`] is what the walk of [`crate::gemm::amx_gemm`] asks for. The instructions are one implementation; the other is
//! plain code for tests, after Intel's description, because few machines have the instructions.

#[cfg(target_arch = "x86_64")]
mod detect;
#[cfg(test)]
pub(crate) mod emulated;
#[cfg(target_arch = "x86_64")]
mod instructions;

#[cfg(target_arch = "x86_64")]
pub(crate) use detect::is_supported;
#[cfg(target_arch = "x86_64")]
pub(crate) use instructions::TileRegisters;

/// Rows of a tile at most, and of one of weights always.
pub(crate) const ROWS: usize = 16;
/// Words of a row.
pub(crate) const WORDS: usize = 16;
/// Values of `k` in a word.
pub(crate) const DEPTH: usize = 2;

/// Tiles before this one hold sums.
const INPUTS: usize = 4;
/// Tiles before this one hold sums or inputs.
const WEIGHTS: usize = 6;
/// How many tiles there are.
const NUM_TILES: usize = 8;

/// The eight tiles of a thread, from [`Tiles::configure`] on until they are dropped.
pub(crate) trait Tiles: Sized {
    /// Readies the tiles, those of sums and inputs with `rows` rows, 1 to 16.
    fn configure(rows: usize) -> Self;

    /// Fills the rows of sums with one row, the same in each.
    fn start<const C: usize>(&mut self, row: &[f32]);

    /// Fills the rows of inputs, one after the other.
    fn load_inputs<const A: usize>(&mut self, words: &[u32]);

    /// Fills 16 rows of weights, `stride` words apart.
    fn load_weights<const B: usize>(&mut self, words: &[u32], stride: usize);

    /// Adds products of pairs of bf16, of inputs and weights, to sums (`TDPBF16PS`).
    ///
    /// To a sum is added that of 16 products of first numbers, each a fused multiply-add, and of 16 products of
    /// second ones. Subnormal numbers are taken for zero, among results as well.
    fn multiply_add<const C: usize, const A: usize, const B: usize>(&mut self);

    /// Stores the rows of sums `stride` words apart.
    fn store<const C: usize>(&self, words: &mut [u32], stride: usize);
}

/// Words from the start of the first of so many rows to the end of the last.
fn span(rows: usize, stride: usize) -> usize {
    (rows - 1) * stride + WORDS
}

/// Multiplies tiles `rounds` times if this machine has them; gives the number of operations, of which a multiplication
/// and an addition are one each.
pub(crate) fn multiply_in_registers(rounds: usize) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    if is_supported() {
        return Some(multiply_tiles::<TileRegisters>(rounds));
    }
    let _ = rounds;
    None
}

/// Four products a round, each into sums of its own.
fn multiply_tiles<T: Tiles>(rounds: usize) -> usize {
    let words = std::hint::black_box([0; ROWS * WORDS]);
    let mut tiles = T::configure(ROWS);
    tiles.load_inputs::<4>(&words);
    tiles.load_inputs::<5>(&words);
    tiles.load_weights::<6>(&words, WORDS);
    tiles.load_weights::<7>(&words, WORDS);
    for _ in 0..rounds {
        tiles.multiply_add::<0, 4, 6>();
        tiles.multiply_add::<1, 4, 7>();
        tiles.multiply_add::<2, 5, 6>();
        tiles.multiply_add::<3, 5, 7>();
    }
    let products_per_tile = ROWS * WORDS * WORDS * DEPTH;
    2 * 4 * products_per_tile * rounds
}

#[cfg(test)]
mod tests;
