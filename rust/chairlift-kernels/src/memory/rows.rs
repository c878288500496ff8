//! Matrices whose rows may lie apart, such as the query part of a fused QKV projection.

use crate::{
    error::ArgumentError,
    memory::{disjoint::Disjoint, pool},
};
use std::ops::Range;

/// Rows of equal width in one slice, `stride` apart.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a, T> {
    data: &'a [T],
    len: usize,
    width: usize,
    stride: usize,
}

/// Like [`Rows`], to be written.
#[derive(Debug)]
pub struct RowsMut<'a, T> {
    data: &'a mut [T],
    len: usize,
    width: usize,
    stride: usize,
}

/// Length of the slice that holds `len` rows; the largest number where it has none.
fn span(len: usize, width: usize, stride: usize) -> usize {
    if len == 0 {
        0
    } else {
        let gaps = (len - 1).saturating_mul(stride);
        gaps.saturating_add(width)
    }
}

/// The elements that rows need, and their stride: 0 for rows without elements, which need no memory, whatever lies
/// between them.
fn check(
    data_len: usize,
    len: usize,
    width: usize,
    stride: usize,
) -> Result<(usize, usize), ArgumentError> {
    let stride = if width == 0 { 0 } else { stride };
    if len > 1 && stride < width {
        return Err(ArgumentError::new(
            "stride",
            format_args!("at least {width}"),
            stride,
        ));
    }
    let needed = span(len, width, stride);
    if data_len < needed {
        return Err(ArgumentError::new(
            "data",
            format_args!("at least {needed} elements"),
            data_len,
        ));
    }
    Ok((needed, stride))
}

impl<'a, T> Rows<'a, T> {
    /// Sees `data` as `len` rows of `width`, each `stride` after the one before.
    ///
    /// # Errors
    /// If the rows overlap or `data` is too short.
    pub fn new(
        data: &'a [T],
        len: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self, ArgumentError> {
        let (needed, stride) = check(data.len(), len, width, stride)?;
        Ok(Self {
            data: &data[..needed],
            len,
            width,
            stride,
        })
    }

    /// Sees `data` as adjacent rows.
    ///
    /// # Panics
    /// If it is not a whole number of rows.
    pub fn contiguous(data: &'a [T], width: usize) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "whole rows");
        Self {
            data,
            len: data.len() / width,
            width,
            stride: width,
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The slice that holds the rows, gaps included.
    pub fn as_slice(&self) -> &'a [T] {
        self.data
    }

    /// The first `width` elements of each row, and the others.
    ///
    /// # Panics
    /// If a row has fewer.
    #[must_use]
    pub fn split_at(&self, width: usize) -> (Self, Self) {
        assert!(width <= self.width, "a part of a row");
        let first = Self { width, ..*self };
        let rest = Self {
            data: if self.len == 0 {
                &[]
            } else {
                &self.data[width..]
            },
            width: self.width - width,
            ..*self
        };
        (first, rest)
    }

    /// Row `index`.
    #[inline(always)]
    pub fn row(&self, index: usize) -> &'a [T] {
        &self.data[index * self.stride..][..self.width]
    }
}

impl<'a, T> RowsMut<'a, T> {
    /// Sees `data` as `len` rows of `width`, each `stride` after the one before.
    ///
    /// # Errors
    /// If the rows overlap or `data` is too short.
    pub fn new(
        data: &'a mut [T],
        len: usize,
        width: usize,
        stride: usize,
    ) -> Result<Self, ArgumentError> {
        let (needed, stride) = check(data.len(), len, width, stride)?;
        Ok(Self {
            data: &mut data[..needed],
            len,
            width,
            stride,
        })
    }

    /// Sees `data` as adjacent rows.
    ///
    /// # Panics
    /// If it is not a whole number of rows.
    pub fn contiguous(data: &'a mut [T], width: usize) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "whole rows");
        Self {
            len: data.len() / width,
            data,
            width,
            stride: width,
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The slice that holds the rows, gaps included.
    pub fn into_slice(self) -> &'a mut [T] {
        self.data
    }
}

impl<T: Send + Sync> RowsMut<'_, T> {
    /// Gives each thread some rows that follow each other.
    pub fn par_rows(self, task: impl Fn(IterMut<'_, T>) + Sync) {
        let grain = pool::grain(self.width);
        self.par_rows_by(grain, task);
    }

    /// Gives each thread some rows that follow each other, at least `grain` where there are as many.
    pub fn par_rows_by(self, grain: usize, task: impl Fn(IterMut<'_, T>) + Sync) {
        let shared = SharedRows::new(self);
        pool::split(shared.len, grain, |rows| {
            // SAFETY: the ranges of a split do not meet.
            task(unsafe { shared.take(rows) });
        });
    }

    /// [`Self::par_rows`] of these rows and as many others, of which a thread gets the same.
    ///
    /// # Panics
    /// If there are not as many others.
    pub fn par_rows_with<U: Send + Sync>(
        self,
        others: RowsMut<'_, U>,
        task: impl Fn(IterMut<'_, T>, IterMut<'_, U>) + Sync,
    ) {
        assert_eq!(self.len, others.len, "as many rows");
        let grain = pool::grain(self.width);
        let (shared, others) = (SharedRows::new(self), SharedRows::new(others));
        pool::split(shared.len, grain, |rows| {
            // SAFETY: the ranges of a split do not meet.
            let (rows, others) = unsafe { (shared.take(rows.clone()), others.take(rows)) };
            task(rows, others);
        });
    }
}

/// Rows that threads share.
struct SharedRows<'a, T> {
    data: Disjoint<'a, T>,
    len: usize,
    width: usize,
    stride: usize,
}

impl<'a, T> SharedRows<'a, T> {
    fn new(rows: RowsMut<'a, T>) -> Self {
        let RowsMut {
            data,
            len,
            width,
            stride,
        } = rows;
        let data = Disjoint::new(data);
        Self {
            data,
            len,
            width,
            stride,
        }
    }

    /// Some of the rows.
    ///
    /// # Safety
    /// While the result lives, no other result of this function holds any of these rows.
    unsafe fn take(&self, rows: Range<usize>) -> IterMut<'a, T> {
        let start = rows.start * self.stride;
        let len = span(rows.len(), self.width, self.stride);
        // SAFETY: rows do not overlap, and the caller keeps them apart.
        let rest = unsafe { self.data.take(start..start + len) };
        IterMut {
            rest,
            width: self.width,
            stride: self.stride,
            indices: rows,
        }
    }
}

/// The rows of one thread, each with its index.
pub struct IterMut<'a, T> {
    rest: &'a mut [T],
    width: usize,
    stride: usize,
    indices: Range<usize>,
}

impl<'a, T> Iterator for IterMut<'a, T> {
    type Item = (usize, &'a mut [T]);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let index = self.indices.next()?;
        let rest = std::mem::take(&mut self.rest);
        // There is nothing behind the last row.
        let (row, rest) = rest.split_at_mut(self.stride.min(rest.len()));
        self.rest = rest;
        Some((index, &mut row[..self.width]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_elements_can_be_read_and_written_whatever_lies_between_them() {
        for stride in [0, 1, 7, usize::MAX] {
            let read = Rows::<f32>::new(&[], 3, 0, stride).expect("no memory is needed");
            assert_eq!((read.len(), read.width(), read.stride()), (3, 0, 0));
            assert!(read.row(2).is_empty());
            let written = RowsMut::<f32>::new(&mut [], 3, 0, stride).expect("the same");
            assert_eq!(
                (written.len(), written.width(), written.stride()),
                (3, 0, 0)
            );
            assert!(written.into_slice().is_empty());
        }
    }

    #[test]
    fn threads_have_the_rows_once_without_what_lies_between_them() {
        for (width, stride) in [(3, 3), (3, 5), (1, 4), (0, 0)] {
            for len in [0, 1, 2, 17] {
                let mut numbers = vec![0; span(len, width, stride)];
                let rows = RowsMut::new(&mut numbers, len, width, stride).expect("rows");
                rows.par_rows_by(1, |rows| {
                    for (index, row) in rows {
                        assert_eq!(row.len(), width);
                        for number in row {
                            *number += index + 1;
                        }
                    }
                });
                for (place, number) in numbers.iter().enumerate() {
                    let is_between = place % stride >= width;
                    assert_eq!(*number, if is_between { 0 } else { place / stride + 1 });
                }
            }
        }
    }

    #[test]
    fn a_thread_has_the_same_rows_of_both() {
        let (mut numbers, mut copies) = ((0..12).collect::<Vec<_>>(), vec![0; 6]);
        let copied = RowsMut::contiguous(&mut copies, 1);
        RowsMut::contiguous(&mut numbers, 2).par_rows_with(copied, |rows, copies| {
            for ((index, row), (other, copy)) in rows.zip(copies) {
                assert_eq!(index, other);
                copy[0] = row[1];
            }
        });
        assert_eq!(copies, [1, 3, 5, 7, 9, 11]);
    }

    #[test]
    fn rows_that_overlap_or_leave_the_slice_are_refused() {
        for (len, width, stride) in [(2, 3, 2), (2, 3, 4), (1, 7, 0), (3, 2, usize::MAX)] {
            assert!(Rows::new(&[0; 6], len, width, stride).is_err());
            assert!(RowsMut::new(&mut [0; 6], len, width, stride).is_err());
        }
    }
}
