//! Rows of a matrix, by their indices: the embedding of tokens, the tokens that are sampled.

use crate::{
    Element,
    error::{ArgumentError, expect_equal},
    memory::rows::{Rows, RowsMut},
};

/// `out[i] = x[rows[i]]`.
///
/// Shapes: `x` `[N, H]`, `rows` `[T]`, `out` `[T, H]`.
///
/// # Errors
/// If the shapes do not fit each other, or an index is outside `x`.
pub fn select_rows<T: Copy + Send + Sync>(
    x: Rows<'_, T>,
    rows: &[i32],
    out: RowsMut<'_, T>,
) -> Result<(), ArgumentError> {
    each_row(x, rows, out, |from, to| to.copy_from_slice(from))
}

/// Selects rows like [`select_rows`], and widens them to f32.
///
/// # Errors
/// The errors of [`select_rows`].
pub fn widen_rows<T: Element>(
    x: Rows<'_, T>,
    rows: &[i32],
    out: RowsMut<'_, f32>,
) -> Result<(), ArgumentError> {
    each_row(x, rows, out, |from, to| {
        for (wide, number) in to.iter_mut().zip(from) {
            *wide = number.to_f32();
        }
    })
}

/// Selects rows like [`select_rows`] and multiplies each number by `multiplier`; the result is rounded once.
///
/// # Errors
/// The errors of [`select_rows`].
pub fn scaled_rows<T: Element, O: Element>(
    x: Rows<'_, T>,
    rows: &[i32],
    multiplier: f32,
    out: RowsMut<'_, O>,
) -> Result<(), ArgumentError> {
    each_row(x, rows, out, |from, to| {
        for (scaled, number) in to.iter_mut().zip(from) {
            *scaled = O::from_f32(number.to_f32() * multiplier);
        }
    })
}

fn each_row<T: Copy + Sync, O: Send + Sync>(
    x: Rows<'_, T>,
    rows: &[i32],
    out: RowsMut<'_, O>,
    write: impl Fn(&[T], &mut [O]) + Sync,
) -> Result<(), ArgumentError> {
    expect_equal("out", "the width of x,", x.width(), out.width())?;
    expect_equal("out", "as many rows as indices:", rows.len(), out.len())?;
    let is_inside = |row: &&i32| usize::try_from(**row).is_ok_and(|row| row < x.len());
    if let Some(row) = rows.iter().find(|row| !is_inside(row)) {
        let expected = format_args!("indices in 0..{}", x.len());
        return Err(ArgumentError::new("rows", expected, row));
    }
    out.par_rows(|part| {
        for (index, out) in part {
            write(x.row(rows[index] as usize), out);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bf16;

    #[test]
    fn rows_come_in_the_order_of_their_indices() {
        let x: Vec<i32> = (0..12).collect();
        let mut out = [0; 9];
        let rows = RowsMut::contiguous(&mut out, 3);
        select_rows(Rows::contiguous(&x, 3), &[3, 0, 3], rows).expect("valid");
        assert_eq!(out, [9, 10, 11, 0, 1, 2, 9, 10, 11]);
    }

    #[test]
    fn widened_rows_keep_their_values() {
        let x = [1.5, -2.0, 0.0, 3.25].map(bf16::from_f32);
        let mut out = [0.0; 4];
        widen_rows(
            Rows::contiguous(&x, 2),
            &[1, 0],
            RowsMut::contiguous(&mut out, 2),
        )
        .expect("valid");
        assert_eq!(out, [0.0, 3.25, 1.5, -2.0]);
    }

    #[test]
    fn scaled_rows_are_rounded_once() {
        let x = [1.5, -2.0, 0.1, 3.25].map(bf16::from_f32);
        let mut out = [bf16::ZERO; 2];
        let rows = RowsMut::contiguous(&mut out, 2);
        scaled_rows(Rows::contiguous(&x, 2), &[1], 3.3, rows).expect("valid");
        assert_eq!(out, [x[2], x[3]].map(|x| bf16::from_f32(x.to_f32() * 3.3)));
    }

    #[test]
    fn an_index_outside_is_named() {
        for index in [-1, 4] {
            let x = [0; 12];
            let mut out = [0; 3];
            let rows = RowsMut::contiguous(&mut out, 3);
            let error =
                select_rows(Rows::contiguous(&x, 3), &[index], rows).expect_err("an index outside");
            assert_eq!(
                error.to_string(),
                format!("rows: expected indices in 0..4, got {index}")
            );
        }
    }
}
