//! Matrices whose rows may lie apart, such as the query part of a fused QKV projection.

use crate::error::ArgumentError;

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
    fn rows_that_overlap_or_leave_the_slice_are_refused() {
        for (len, width, stride) in [(2, 3, 2), (2, 3, 4), (1, 7, 0), (3, 2, usize::MAX)] {
            assert!(Rows::new(&[0; 6], len, width, stride).is_err());
            assert!(RowsMut::new(&mut [0; 6], len, width, stride).is_err());
        }
    }
}
