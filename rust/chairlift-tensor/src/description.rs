//! What a tensor is at one moment: where its numbers are, and of which type.

use crate::TensorElement;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::fmt::{self, Display};

/// Element types that cross the border.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// `torch.float32`
    Float32,
    /// `torch.bfloat16`
    Bfloat16,
    /// `torch.uint8`
    Uint8,
    /// `torch.int8`
    Int8,
    /// `torch.int32`
    Int32,
    /// `torch.int64`
    Int64,
}

impl Dtype {
    pub(crate) const ALL: [Self; 6] = [
        Self::Float32,
        Self::Bfloat16,
        Self::Uint8,
        Self::Int8,
        Self::Int32,
        Self::Int64,
    ];

    /// The name that torch has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
        }
    }

    /// Bytes of an element.
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::Uint8 | Self::Int8 => 1,
            Self::Bfloat16 => 2,
            Self::Float32 | Self::Int32 => 4,
            Self::Int64 => 8,
        }
    }
}

/// Where the numbers of a tensor are. Sizes, strides and products of them fit the address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) address: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<isize>,
}

impl Description {
    /// Checks that products of sizes and strides, in any order, fit the address space: axes without elements too.
    pub(crate) fn new(
        address: usize,
        dtype: Dtype,
        shape: Vec<usize>,
        strides: Vec<isize>,
    ) -> PyResult<Self> {
        let item = dtype.size();
        let bytes = shape
            .iter()
            .try_fold(item, |bytes, &size| bytes.checked_mul(size.max(1)));
        let steps = shape.iter().zip(&strides).map(|(&size, &stride)| {
            let step = stride.unsigned_abs().checked_mul(item)?;
            step.checked_mul(size.saturating_sub(1))
        });
        let mut steps = steps.chain([bytes, Some(address)]);
        let end = steps.try_fold(0, |end: usize, step| end.checked_add(step?));
        if end.is_none_or(|end| end > isize::MAX as usize) {
            let message = format!("expected sizes that fit memory, got {shape:?}");
            return Err(PyValueError::new_err(message));
        }
        Ok(Self {
            address,
            dtype,
            shape,
            strides,
        })
    }

    /// A `TypeError` that says which element types an argument may have.
    pub(crate) fn wrong_dtype(&self, name: &str, expected: &str) -> PyErr {
        let got = self.dtype.name();
        PyTypeError::new_err(format!("{name}: expected {expected}, got {got}"))
    }

    pub(crate) fn check_dtype<T: TensorElement>(&self, name: &str) -> PyResult<()> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        Err(self.wrong_dtype(name, T::DTYPE.name()))
    }

    /// Elements from one index of the first axis to the next, where all other axes are contiguous.
    pub(crate) fn row_stride(&self, name: &str) -> PyResult<usize> {
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
    pub(crate) fn span(&self, row_stride: usize) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        match self.shape.split_first() {
            None => 1,
            Some((rows, rest)) => (rows - 1) * row_stride + rest.iter().product::<usize>(),
        }
    }
}

impl Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            dtype,
            shape,
            strides,
        } = self;
        let name = dtype.name();
        write!(
            f,
            "{name} {shape:?} with strides {strides:?} at {address:#x}"
        )
    }
}
