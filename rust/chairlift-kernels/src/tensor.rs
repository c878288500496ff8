//! The door for torch tensors: checked views of their memory (feature `python`).
//!
//! [`Tensor`] is extracted from an argument and keeps the Python object alive. A numpy array passes too, so that a user
//! of the scheduler alone need not import torch, which takes seconds. [`Borrows`] hands out
//! slices of the tensors of one call after checking type and shape, and refuses a tensor that is
//! written and overlaps another. A mistake is a `TypeError` (not a CPU tensor, wrong dtype) or
//! a `ValueError` (wrong shape, not contiguous, overlap) that names the argument.
//!
//! As with any torch operator, nobody else may write a tensor while a call that reads it runs.

mod array;
mod dlpack;

use crate::error::ArgumentError;
use crate::rows::{Rows, RowsMut};
use half::bf16;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::ops::Range;
use std::slice;

/// Element types that cross the border.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// `torch.float32`
    Float32,
    /// `torch.bfloat16`
    Bfloat16,
    /// `torch.int8`
    Int8,
    /// `torch.int32`
    Int32,
    /// `torch.int64`
    Int64,
}

impl Dtype {
    const ALL: [Self; 5] = [
        Self::Float32,
        Self::Bfloat16,
        Self::Int8,
        Self::Int32,
        Self::Int64,
    ];

    /// As torch calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
            Self::Int8 => "int8",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
        }
    }
}

/// An element type of tensors.
///
/// # Safety
/// The type has the size and layout of `DTYPE`, and any bits are a value of it.
pub unsafe trait TensorElement: Copy + Send + Sync + 'static {
    /// What torch calls the type.
    const DTYPE: Dtype;
}

// SAFETY: the same type.
unsafe impl TensorElement for f32 {
    const DTYPE: Dtype = Dtype::Float32;
}
// SAFETY: a transparent `u16` that holds the same format.
unsafe impl TensorElement for bf16 {
    const DTYPE: Dtype = Dtype::Bfloat16;
}
// SAFETY: the same type.
unsafe impl TensorElement for i8 {
    const DTYPE: Dtype = Dtype::Int8;
}
// SAFETY: the same type.
unsafe impl TensorElement for i32 {
    const DTYPE: Dtype = Dtype::Int32;
}
// SAFETY: the same type.
unsafe impl TensorElement for i64 {
    const DTYPE: Dtype = Dtype::Int64;
}

/// A dense CPU tensor or numpy array of one of [`Dtype`], kept alive.
pub struct Tensor {
    _object: Py<PyAny>,
    address: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    strides: Vec<isize>,
}

impl<'py> FromPyObject<'_, 'py> for Tensor {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if array::is_array(object)? {
            return Self::of_array(&object);
        }
        Self::of_torch(object)
    }
}

impl Tensor {
    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The sizes, where their number is right.
    ///
    /// # Errors
    /// `ValueError` otherwise.
    pub fn dims<const N: usize>(&self, name: &str) -> PyResult<[usize; N]> {
        self.shape.as_slice().try_into().map_err(|_| {
            let got = self.shape.len();
            PyValueError::new_err(format!("{name}: expected {N} dimensions, got {got}"))
        })
    }

    /// A `TypeError` that says which element types an argument may have.
    pub fn wrong_dtype(&self, name: &str, expected: &str) -> PyErr {
        let got = self.dtype.name();
        PyTypeError::new_err(format!("{name}: expected {expected}, got {got}"))
    }

    fn check_dtype<T: TensorElement>(&self, name: &str) -> PyResult<()> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        Err(self.wrong_dtype(name, T::DTYPE.name()))
    }

    /// Elements from one index of the first axis to the next, where all other axes are contiguous.
    fn row_stride(&self, name: &str) -> PyResult<usize> {
        let mut expected = 1;
        for axis in (0..self.shape.len()).rev() {
            let (size, stride) = (self.shape[axis], self.strides[axis]);
            let fits = stride == expected || axis == 0 && stride > expected;
            if size > 1 && !fits {
                let strides = &self.strides;
                let message = format!("{name}: expected contiguous rows, got strides {strides:?}");
                return Err(PyValueError::new_err(message));
            }
            if axis == 0 && size > 1 {
                return Ok(stride as usize);
            }
            expected *= size as isize;
        }
        let width = self.shape.iter().skip(1).product();
        Ok(width)
    }

    /// Elements from the first to the last, gaps between rows included.
    fn span(&self, row_stride: usize) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        match self.shape.split_first() {
            None => 1,
            Some((rows, rest)) => (rows - 1) * row_stride + rest.iter().product::<usize>(),
        }
    }
}

/// The memory that one call has in use.
#[derive(Default)]
pub struct Borrows {
    taken: Vec<Taken>,
}

struct Taken {
    name: &'static str,
    bytes: Range<usize>,
    is_written: bool,
}

impl Borrows {
    /// A contiguous tensor, to be read.
    ///
    /// # Errors
    /// `TypeError` or `ValueError` if dtype, contiguity or overlap are wrong.
    pub fn slice<'t, T: TensorElement>(
        &mut self,
        name: &'static str,
        tensor: &'t Tensor,
    ) -> PyResult<&'t [T]> {
        let len = contiguous_len(name, tensor)?;
        let start = self.take::<T>(name, tensor, len, false)?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: torch or numpy owns `len` elements of this type from `start` on while `tensor`
        // lives, and this call has no mutable view of them.
        Ok(unsafe { slice::from_raw_parts(start, len) })
    }

    /// A contiguous tensor, to be written.
    ///
    /// # Errors
    /// As [`Self::slice`].
    #[expect(
        clippy::mut_from_ref,
        reason = "torch owns the memory, and `take` keeps the views apart"
    )]
    pub fn slice_mut<'t, T: TensorElement>(
        &mut self,
        name: &'static str,
        tensor: &'t Tensor,
    ) -> PyResult<&'t mut [T]> {
        let len = contiguous_len(name, tensor)?;
        let start = self.take::<T>(name, tensor, len, true)?;
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: as in `slice`; `take` found no other view of them.
        Ok(unsafe { slice::from_raw_parts_mut(start, len) })
    }

    /// A tensor as rows over its first axis, which may lie apart, to be read.
    ///
    /// # Errors
    /// As [`Self::slice`].
    pub fn rows<'t, T: TensorElement>(
        &mut self,
        name: &'static str,
        tensor: &'t Tensor,
    ) -> PyResult<Rows<'t, T>> {
        let (len, width, stride) = rows_of(name, tensor)?;
        let span = tensor.span(stride);
        let start = self.take::<T>(name, tensor, span, false)?;
        let data = if span == 0 {
            &[]
        } else {
            // SAFETY: torch owns the `span` elements from the first to the last (a view never
            // leaves its storage) while `tensor` lives, and no mutable view of them is out.
            unsafe { slice::from_raw_parts(start, span) }
        };
        Rows::new(data, len, width, stride).map_err(|error| named(name, error))
    }

    /// A tensor as rows over its first axis, which may lie apart, to be written.
    ///
    /// # Errors
    /// As [`Self::slice`].
    pub fn rows_mut<'t, T: TensorElement>(
        &mut self,
        name: &'static str,
        tensor: &'t Tensor,
    ) -> PyResult<RowsMut<'t, T>> {
        let (len, width, stride) = rows_of(name, tensor)?;
        let span = tensor.span(stride);
        let start = self.take::<T>(name, tensor, span, true)?;
        let data = if span == 0 {
            &mut []
        } else {
            // SAFETY: as in `rows`; `take` found no other view of them.
            unsafe { slice::from_raw_parts_mut(start, span) }
        };
        RowsMut::new(data, len, width, stride).map_err(|error| named(name, error))
    }

    /// Notes `len` elements as in use; gives their start.
    fn take<T: TensorElement>(
        &mut self,
        name: &'static str,
        tensor: &Tensor,
        len: usize,
        is_written: bool,
    ) -> PyResult<*mut T> {
        tensor.check_dtype::<T>(name)?;
        let bytes = tensor.address..tensor.address + len * size_of::<T>();
        if len > 0 && (tensor.address == 0 || !tensor.address.is_multiple_of(align_of::<T>())) {
            return Err(PyValueError::new_err(format!(
                "{name}: expected aligned memory"
            )));
        }
        for other in &self.taken {
            let overlaps = bytes.start < other.bytes.end && other.bytes.start < bytes.end;
            if overlaps && (is_written || other.is_written) {
                let other = other.name;
                return Err(PyValueError::new_err(format!("{name}: overlaps {other}")));
            }
        }
        self.taken.push(Taken {
            name,
            bytes,
            is_written,
        });
        Ok(std::ptr::with_exposed_provenance_mut(tensor.address))
    }
}

fn contiguous_len(name: &str, tensor: &Tensor) -> PyResult<usize> {
    let (len, width, stride) = rows_of(name, tensor)?;
    if len > 1 && stride != width {
        let strides = &tensor.strides;
        let message = format!("{name}: expected a contiguous tensor, got strides {strides:?}");
        return Err(PyValueError::new_err(message));
    }
    Ok(tensor.shape.iter().product())
}

/// Number, width and stride of a tensor's rows.
fn rows_of(name: &str, tensor: &Tensor) -> PyResult<(usize, usize, usize)> {
    let stride = tensor.row_stride(name)?;
    let (len, rest) = tensor.shape.split_first().unwrap_or((&1, &[]));
    Ok((*len, rest.iter().product(), stride))
}

/// An error about memory, with the name of the argument.
fn named(name: &'static str, error: ArgumentError) -> PyErr {
    ArgumentError {
        argument: name,
        ..error
    }
    .into()
}

impl From<ArgumentError> for PyErr {
    fn from(error: ArgumentError) -> Self {
        PyValueError::new_err(error.to_string())
    }
}
