//! The one inner loop of all matrix work: a tile of rows times a panel of columns.
//!
//! ```text
//!                    B, one panel: W columns            a linear layer: k = input feature
//!                k  [ . . . . . . . . . ]               scores: k = coordinate, columns = tokens
//!     A          |  [ . . . . . . . . . ]               values: k = token, columns = coordinates
//!   R rows  -->  v  [ . . . . . . . . . ]
//!                      sums, R x N registers
//! ```
//!
//! Every sum is one chain of multiply-adds (or of dot products of pairs) over `k` in ascending order,
//! whatever R and N are: this is where batch invariance comes from.

use crate::{
    gemm::operand::Operand,
    isa::{Isa, element::Packed},
    memory::prefetch::{CACHE_LINE, opaque, prefetch},
};

/// Packed memory that is B, and what is asked for while it is read: hardware prefetchers stop at every
/// page, and with few rows reading B is all that takes time.
#[derive(Clone, Copy)]
pub struct Panel<'a, P> {
    /// The units of B.
    pub units: &'a [P],
    /// What is asked for.
    pub ahead: Ahead,
}

/// Where the memory lies that is needed next.
#[derive(Clone, Copy)]
pub enum Ahead {
    /// Always so many bytes from the unit that is read.
    Bytes(isize),
    /// The panel after this one. Of several tiles that read B each asks for a part, in the order of memory:
    ///
    /// ```text
    ///   next panel   [    tile 0    |    tile 1    |    tile 2    ]   a third of what is read of B
    /// ```
    NextPanel {
        /// Which tile this is.
        tile: usize,
        /// How many there are.
        tiles: usize,
    },
}

impl<'a, P> Panel<'a, P> {
    /// B as lines of `width` units.
    #[inline(always)]
    pub fn lines(&self, width: usize) -> PanelLines<'a, P> {
        let rest = self.units;
        let start = rest.as_ptr();
        let (next, tiles) = match self.ahead {
            Ahead::Bytes(offset) => (start.wrapping_byte_offset(offset), 1),
            Ahead::NextPanel { tile, tiles } => {
                // By pieces: lines are few where they are long.
                let pieces = size_of_val(rest) / piece::<P>(width);
                let part = tile * pieces / tiles * piece::<P>(width);
                let next = start.wrapping_add(rest.len()).wrapping_byte_add(part);
                (next, tiles)
            }
        };
        let every = tiles * piece::<P>(width);
        PanelLines {
            rest,
            width,
            next,
            // A piece at once: rounded up, the pieces of a tile reach those of the next one.
            read: every - piece::<P>(width),
            every,
        }
    }
}

/// Bytes of a piece of prefetched memory: a short line of `width` units, of a long one a cache line.
const fn piece<P>(width: usize) -> usize {
    let line = width * size_of::<P>();
    if line > 4 * CACHE_LINE {
        CACHE_LINE
    } else {
        line
    }
}

/// Lines of a [`Panel`].
pub struct PanelLines<'a, P> {
    rest: &'a [P],
    width: usize,
    /// Where the next piece begins.
    next: *const P,
    /// Bytes that were read of B since the last piece.
    read: usize,
    /// Bytes to be read of B before the next piece.
    every: usize,
}

impl<'a, P> PanelLines<'a, P> {
    /// What is left as lines of another width.
    #[inline(always)]
    pub(crate) fn of_width(self, width: usize) -> Self {
        let tiles = self.every / piece::<P>(self.width);
        Self {
            width,
            every: tiles * piece::<P>(width),
            ..self
        }
    }

    /// The next line; nothing is prefetched.
    #[inline(always)]
    pub(crate) fn next_line(&mut self) -> Option<&'a [P]> {
        let (line, rest) = self.rest.split_at_checked(self.width)?;
        self.rest = rest;
        Some(line)
    }

    /// Prefetches what is due after some units of a line of B. A long line is prefetched in pieces, spread over the lines
    /// that are read: a core keeps few requests to memory, and stalls when more are made at once.
    #[inline(always)]
    pub(crate) fn prefetch_next(&mut self, num_units: usize) {
        // Of a width that the compiler knows: no loop for a line of one piece.
        let (line, piece) = (num_units * size_of::<P>(), piece::<P>(self.width));
        self.read += line;
        while self.read >= self.every {
            for offset in (0..piece).step_by(CACHE_LINE) {
                prefetch(self.next.wrapping_byte_add(offset));
            }
            self.next = self.next.wrapping_byte_add(piece);
            self.read -= self.every;
            if piece == line {
                break;
            }
        }
    }
}

impl<'a, P> Iterator for PanelLines<'a, P> {
    type Item = &'a [P];

    #[inline(always)]
    fn next(&mut self) -> Option<&'a [P]> {
        let line = self.next_line()?;
        self.prefetch_next(self.width);
        Some(line)
    }
}

/// Rows of a tile at most, of any kind.
pub(crate) const MAX_TILE_ROWS: usize = 14;

/// What a tile of a linear layer keeps in registers, two of each per row.
#[derive(Clone, Copy)]
pub(crate) enum TileKind {
    /// Sums of numbers.
    Floats,
    /// Sums by dot products of pairs.
    Pairs,
    /// Sums of the integers of a group, and totals of numbers.
    Groups,
    /// The same of groups that share their scale.
    Spans,
}

impl TileKind {
    /// Rows of a tile at most.
    pub(crate) const fn max_rows<I: Isa>(self) -> usize {
        match self {
            Self::Floats => I::ROWS,
            // 28 sums, 2 of weights and 1 of a row are 31 registers of 32.
            Self::Pairs => MAX_TILE_ROWS,
            // Totals that have no register are needed once in 32 dot products of a sum.
            Self::Spans if I::HAS_DOT => 8,
            Self::Groups | Self::Spans => I::INTEGER_ROWS,
        }
    }

    /// Whether sums come by [`crate::isa::integers::Integers::add_dot`].
    pub(crate) const fn uses_dot(self) -> bool {
        matches!(self, Self::Groups | Self::Spans)
    }
}

/// A tile of sums: N registers for each of R rows.
pub type Sums<I, const R: usize, const N: usize> = [[<I as Isa>::Vector; N]; R];

/// Units of a row of A that lie side by side.
pub(crate) const STRIP: usize = 64;

/// `sums[r][c] + sum over k of a[r][k] * b[k][c]`, in ascending order of `k`.
///
/// A comes as strips of its rows, so that a row is packed by copying and a unit of each row is found at
/// a fixed distance from that of the first:
///
/// ```text
///   a   [ row 0, k 0..64 ][ row 1, k 0..64 ] .. [ row R - 1, k 0..64 ]   [ row 0, k 64..128 ] ..
/// ```
///
/// `b` gives a line of `N * LANES` units per `P::DEPTH` values of `k`; it ends where the rows end, which
/// may be within a strip. Sums come and go by value: the compiler keeps an array in registers only where
/// nothing can hold its address.
#[inline(always)]
#[must_use]
pub fn accumulate<I: Isa, F: Operand<P>, P: Packed, const R: usize, const N: usize>(
    sums: Sums<I, R, N>,
    a: &[[[F; STRIP]; R]],
    mut b: PanelLines<'_, P>,
) -> Sums<I, R, N> {
    let mut sums = sums;
    let parts = P::DEPTH / F::DEPTH;
    for strips in a {
        for (place, line) in (0..STRIP / parts).zip(&mut b) {
            add_line::<I, F, P, R, N>(&mut sums, strips, place * parts, line);
        }
    }
    sums
}

/// One line of B against the units of A at `place`.
#[inline(always)]
fn add_line<I: Isa, F: Operand<P>, P: Packed, const R: usize, const N: usize>(
    sums: &mut Sums<I, R, N>,
    strips: &[[F; STRIP]; R],
    place: usize,
    line: &[P],
) {
    for index in 0..P::DEPTH / F::DEPTH {
        let line = if index == 0 { line } else { opaque(line) };
        let mut b = [F::load::<I>(line, index); N];
        for n in 1..N {
            b[n] = F::load::<I>(&line[n * I::LANES..], index);
        }
        for r in 0..R {
            let a = F::broadcast::<I>(&strips[r][place + index]);
            for n in 0..N {
                sums[r][n] = F::multiply_add::<I>(a, b[n], sums[r][n]);
            }
        }
    }
}

/// Cuts `total` rows into tiles of at most `max_rows`, as equal as they can be: a tile of few rows costs
/// nearly as much as a full one.
pub fn balanced(total: usize, max_rows: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let tiles = total.div_ceil(max_rows);
    (0..tiles).map(move |tile| tile * total / tiles..(tile + 1) * total / tiles)
}

/// Evaluates an expression with the constant `$R` equal to `$rows`, which is at most the constant
/// `$max_rows`.
macro_rules! with_rows {
    ($max_rows:expr, $rows:expr, |$R:ident| $body:expr) => {
        $crate::gemm::accumulator::with_rows!($max_rows, $rows, |$R| $body, 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
    };
    ($max_rows:expr, $rows:expr, |$R:ident| $body:expr, $($n:literal)*) => {
        match $rows {
            // By a constant: taller tiles are not compiled.
            $($n if const { $n <= $max_rows } => {
                const $R: usize = $n;
                $body
            })*
            rows => unreachable!("a tile of {rows} rows"),
        }
    };
}
pub(crate) use with_rows;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_prefetch_all_of_the_next_panel() {
        let units = vec![0_u32; 8 * 1056];
        // Lines of a layer in bf16, of groups that have a scale each, and of spans.
        for width in [32, 264, 1056] {
            for tiles in 2..40 {
                let mut prefetched = units.as_ptr_range().end.addr();
                for tile in 0..tiles {
                    let ahead = Ahead::NextPanel { tile, tiles };
                    let units = &units;
                    let mut lines = Panel { units, ahead }.lines(width);
                    assert!(
                        lines.next.addr() <= prefetched,
                        "tile {tile} of {tiles}, {width} units"
                    );
                    while let Some(line) = lines.next_line() {
                        lines.prefetch_next(line.len());
                    }
                    prefetched = lines.next.addr();
                }
                let end = units.as_ptr_range().end.addr() + size_of_val(&units[..]);
                assert!(
                    (end..=end + 4 * CACHE_LINE).contains(&prefetched),
                    "{tiles} tiles, {width} units"
                );
            }
        }
    }

    #[test]
    fn tiles_cover_the_rows_and_are_balanced() {
        for total in 0..200 {
            let tiles: Vec<_> = balanced(total, 6).collect();
            assert_eq!(
                tiles.iter().map(ExactSizeIterator::len).sum::<usize>(),
                total
            );
            assert!(tiles.windows(2).all(|pair| pair[0].end == pair[1].start));
            let sizes = tiles.iter().map(ExactSizeIterator::len);
            if let (Some(min), Some(max)) = (sizes.clone().min(), sizes.max()) {
                assert!(max <= 6 && max - min <= 1);
            }
        }
    }
}
