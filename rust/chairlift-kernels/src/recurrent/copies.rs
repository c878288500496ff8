//! Copies of whole states: to and from snapshots, and from a row to the others of its request.

use crate::{
    error::{ArgumentError, expect_equal},
    memory::{disjoint::Disjoint, pool},
};

/// Numbers that one thread copies at a time.
const CHUNK: usize = 1 << 14;

/// Copies states; `state` is `[rows, row_len]`, and `moves` `[., 2]` has the target and the source of each copy.
///
/// # Errors
/// If a row is not there, is the target of two copies, or is target and source.
pub fn copy_states(state: &mut [f32], row_len: usize, moves: &[i32]) -> Result<(), ArgumentError> {
    let num_rows = state.len().checked_div(row_len).unwrap_or(0);
    expect_equal("state", "whole rows of", num_rows * row_len, state.len())?;
    let (moves, rest) = moves.as_chunks::<2>();
    expect_equal("moves", "pairs, with a rest of", 0, rest.len())?;
    let mut is_target = vec![false; num_rows];
    let expected = format_args!("rows in 0..{num_rows}, each a target once");
    for &[target, _] in moves {
        match usize::try_from(target)
            .ok()
            .and_then(|row| is_target.get_mut(row))
        {
            Some(is_seen) if !*is_seen => *is_seen = true,
            _ => return Err(ArgumentError::new("moves", expected, target)),
        }
    }
    for &[_, source] in moves {
        let row = usize::try_from(source).ok();
        if row.and_then(|row| is_target.get(row)) != Some(&false) {
            let expected = format_args!("sources in 0..{num_rows} that are no targets");
            return Err(ArgumentError::new("moves", expected, source));
        }
    }
    let state = Disjoint::new(state);
    let chunks = row_len.div_ceil(CHUNK);
    pool::split(moves.len() * chunks, 1, |chunk_indices| {
        for index in chunk_indices {
            let [target, source] = moves[index / chunks];
            let start = index % chunks * CHUNK;
            let len = CHUNK.min(row_len - start);
            let (to, from) = (
                target as usize * row_len + start,
                source as usize * row_len + start,
            );
            // SAFETY: no row is target and source, and each chunk of a target belongs to one part.
            let (to, from) = unsafe { (state.take(to..to + len), state.share(from..from + len)) };
            to.copy_from_slice(from);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_copied_whole() {
        let row_len = CHUNK + 3;
        let mut state: Vec<f32> = (0..4 * row_len).map(|number| number as f32).collect();
        let row = |row: usize| -> Vec<f32> {
            (row * row_len..(row + 1) * row_len)
                .map(|number| number as f32)
                .collect()
        };
        copy_states(&mut state, row_len, &[3, 1, 0, 1]).expect("copied");
        assert_eq!(state, [row(1), row(1), row(2), row(1)].concat());
    }

    #[test]
    fn what_is_no_copy_is_refused_and_changes_nothing() {
        for moves in [
            &[0, 3][..],
            &[3, 0],
            &[-1, 0],
            &[0, -1],
            &[0, 1, 0, 2],
            &[0, 1, 1, 2],
            &[0, 0],
            &[0],
        ] {
            let mut state = [1.0, 2.0, 3.0];
            let copied = copy_states(&mut state, 1, moves);
            assert_eq!(copied.map_err(|error| error.argument), Err("moves"));
            assert_eq!(state, [1.0, 2.0, 3.0]);
        }
    }
}
