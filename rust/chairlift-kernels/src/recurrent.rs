//! Layers with a recurrent state: of each row of the batch, what its tokens so far have left behind.
//!
//! ```text
//! tokens of the step    | row 3: c .. c+n |  row 0: one  | ...       each row's in order, one after the other
//! state                 [ row 0 | row 1 | row 2 | row 3 | ... ]      read before its first token, written after its last
//! ```
//!
//! A row whose first token is at position 0 begins with a state of zeros, whatever lies there. Every token is one step of
//! the recurrence, in a prompt as in a decode: the bits of a state are a function of the tokens alone, not of chunks.

pub mod conv;
pub mod copies;
pub mod delta;
pub mod scan;

use crate::error::{ArgumentError, expect_equal};
use std::ops::Range;

/// The tokens of a step, as rows of the batch.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentRows<'a> {
    /// `[R]`: the row of the state of each.
    pub rows: &'a [i32],
    /// `[R + 1]`: where the tokens of each begin.
    pub starts: &'a [i32],
    /// `[R]`: tokens of each after this step.
    pub lens: &'a [i32],
}

/// One of them.
#[derive(Clone, Debug)]
struct Sequence {
    row: usize,
    tokens: Range<usize>,
    /// Whether its first token is the first of all.
    is_new: bool,
}

impl RecurrentRows<'_> {
    /// Fails unless they are the tokens of a step, each row is there once, and each has a state.
    fn check(&self, num_tokens: usize, num_states: usize) -> Result<Vec<Sequence>, ArgumentError> {
        let num_rows = self.rows.len();
        expect_equal(
            "starts",
            "one per row and one:",
            num_rows + 1,
            self.starts.len(),
        )?;
        expect_equal("lens", "one per row:", num_rows, self.lens.len())?;
        let mut seen = vec![false; num_states];
        let mut end = 0;
        let mut sequences = Vec::with_capacity(num_rows);
        for (index, (&row, &len)) in self.rows.iter().zip(self.lens).enumerate() {
            let place = usize::try_from(row).ok().and_then(|row| seen.get_mut(row));
            match place {
                Some(is_seen) if !*is_seen => *is_seen = true,
                _ => {
                    let expected = format_args!("rows in 0..{num_states}, each once");
                    return Err(ArgumentError::new("rows", expected, row));
                }
            }
            let last = usize::try_from(self.starts[index + 1]).unwrap_or(usize::MAX);
            let count = last.wrapping_sub(end);
            if usize::try_from(self.starts[index]) != Ok(end) || last > num_tokens || last < end {
                let expected = format_args!("0 to {num_tokens}, in order");
                return Err(ArgumentError::new(
                    "starts",
                    expected,
                    self.starts[index + 1],
                ));
            }
            if usize::try_from(len).map_or(true, |len| len < count) {
                let expected = format_args!("at least {count}");
                return Err(ArgumentError::new("lens", expected, len));
            }
            sequences.push(Sequence {
                row: row as usize,
                tokens: end..last,
                is_new: len as usize == count,
            });
            end = last;
        }
        expect_equal("starts", "at last the number of tokens,", num_tokens, end)?;
        Ok(sequences)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: &[i32], starts: &[i32], lens: &[i32]) -> Result<(), &'static str> {
        let sequences = RecurrentRows { rows, starts, lens };
        let checked = sequences.check(3, 4);
        checked.map(|_| ()).map_err(|error| error.argument)
    }

    #[test]
    fn what_is_no_batch_is_refused_by_name() {
        assert_eq!(check(&[3, 0], &[0, 2, 3], &[2, 9]), Ok(()));
        assert_eq!(check(&[4, 0], &[0, 2, 3], &[2, 9]), Err("rows"));
        assert_eq!(check(&[-1, 0], &[0, 2, 3], &[2, 9]), Err("rows"));
        assert_eq!(check(&[1, 1], &[0, 2, 3], &[2, 9]), Err("rows"));
        assert_eq!(check(&[3, 0], &[0, 2, 4], &[2, 9]), Err("starts"));
        assert_eq!(check(&[3, 0], &[0, 2, 1], &[2, 9]), Err("starts"));
        assert_eq!(check(&[3, 0], &[1, 2, 3], &[2, 9]), Err("starts"));
        assert_eq!(check(&[3, 0], &[0, 2], &[2, 9]), Err("starts"));
        assert_eq!(check(&[3], &[0, 2], &[2]), Err("starts"));
        assert_eq!(check(&[3, 0], &[0, 2, 3], &[1, 9]), Err("lens"));
        assert_eq!(check(&[3, 0], &[0, 2, 3], &[2]), Err("lens"));
    }
}
