//! The door for torch tensors: checked views of their memory.
//!
//! [`Tensor`] is extracted from an argument and keeps the Python object alive. A numpy array passes too, so that a user
//! of the scheduler alone need not import torch, which takes seconds. [`Borrows`] hands out
//! slices of the tensors of one call after checking type and shape, and refuses a tensor that is
//! written and overlaps another. What is written is a [`TensorMut`], whose memory can be. A mistake is a `TypeError`
//! (not a CPU tensor, wrong dtype) or a `ValueError` (wrong shape, not contiguous, overlap, memory that cannot be
//! written) that names the argument.
//!
//! As with any torch operator, no other thread may write a tensor while a call that reads it runs, nor resize it or
//! move it to shared memory: both free its memory. A tensor that is given other memory (`set_`, an assignment to
//! `data`) does no harm to a caller that holds its [`Tensor::storage`].

mod array;
mod description;
mod dlpack;
mod writable;

use bytemuck::Pod;
use chairlift_kernels::{ArgumentError, Rows, RowsMut};
use description::Description;
use half::bf16;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::ops::{Deref, Range};
use std::slice;
use std::sync::atomic::AtomicU32;

pub use description::Dtype;

/// An element type of tensors: any bits are a value of it.
pub trait TensorElement: Pod + Send + Sync {
    /// What torch calls the type.
    const DTYPE: Dtype;
}

impl TensorElement for f32 {
    const DTYPE: Dtype = Dtype::Float32;
}
impl TensorElement for bf16 {
    const DTYPE: Dtype = Dtype::Bfloat16;
}
impl TensorElement for u8 {
    const DTYPE: Dtype = Dtype::Uint8;
}
impl TensorElement for i8 {
    const DTYPE: Dtype = Dtype::Int8;
}
impl TensorElement for i32 {
    const DTYPE: Dtype = Dtype::Int32;
}
impl TensorElement for i64 {
    const DTYPE: Dtype = Dtype::Int64;
}

/// A dense CPU tensor or numpy array of one of [`Dtype`], kept alive.
pub struct Tensor {
    object: Py<PyAny>,
    description: Description,
}

/// A [`Tensor`] whose memory can be written.
pub struct TensorMut(Tensor);

impl<'py> FromPyObject<'_, 'py> for Tensor {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let description = if array::is_array(object)? {
            array::describe(&object)?
        } else {
            dlpack::describe(object)?
        };
        Ok(Self {
            object: object.to_owned().unbind(),
            description,
        })
    }
}

impl<'py> FromPyObject<'_, 'py> for TensorMut {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let tensor: Tensor = object.extract()?;
        let is_empty = tensor.shape().contains(&0);
        if is_empty || writable::is_writable(tensor.description.address) {
            return Ok(Self(tensor));
        }
        let message = "expected memory that can be written, got a read-only mapping";
        Err(PyValueError::new_err(message))
    }
}

impl AsRef<Tensor> for Tensor {
    fn as_ref(&self) -> &Tensor {
        self
    }
}

impl AsRef<Tensor> for TensorMut {
    fn as_ref(&self) -> &Tensor {
        &self.0
    }
}

impl Deref for TensorMut {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl Tensor {
    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.description.dtype
    }

    /// Sizes.
    pub fn shape(&self) -> &[usize] {
        &self.description.shape
    }

    /// A `TypeError` that says which element types an argument may have.
    pub fn wrong_dtype(&self, name: &str, expected: &str) -> PyErr {
        self.description.wrong_dtype(name, expected)
    }

    /// Refers to the same Python object, with the same description.
    #[must_use]
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            object: self.object.clone_ref(py),
            description: self.description.clone(),
        }
    }

    /// Whether both are one Python object, described alike.
    pub fn is_same(&self, other: &Self) -> bool {
        self.object.is(&other.object) && self.description == other.description
    }

    /// The address of the Python object, which no other object has while this lives.
    pub fn identity(&self) -> usize {
        self.object.as_ptr().addr()
    }

    /// What owns the memory: it outlives a tensor that is given other memory, but not a resize of itself.
    ///
    /// # Errors
    /// What torch raises for a tensor that has no memory of its own.
    pub fn storage(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let object = self.object.bind_borrowed(py);
        if array::is_array(object)? {
            return Ok(object.to_owned().unbind());
        }
        dlpack::storage(object)
    }

    /// Checks that the Python object still has this memory, dtype, shape and strides.
    ///
    /// # Errors
    /// `RuntimeError` otherwise.
    pub fn check_unchanged(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let object = self.object.bind_borrowed(py);
        if !array::is_array(object)?
            && dlpack::is_as_described(object, &self.description).unwrap_or(false)
        {
            return Ok(());
        }
        let got = match Self::extract(object) {
            Ok(tensor) if tensor.description == self.description => return Ok(()),
            Ok(tensor) => tensor.description.to_string(),
            Err(error) => format!("another: {}", error.value(py)),
        };
        let expected = &self.description;
        Err(PyRuntimeError::new_err(format!(
            "{name}: expected the tensor as it was recorded, {expected}, got {got}"
        )))
    }

    /// The sizes, where their number is right.
    ///
    /// # Errors
    /// `ValueError` otherwise.
    pub fn dims<const N: usize>(&self, name: &str) -> PyResult<[usize; N]> {
        self.shape().try_into().map_err(|_| {
            let got = self.shape().len();
            PyValueError::new_err(format!("{name}: expected {N} dimensions, got {got}"))
        })
    }
}

impl TensorMut {
    /// A contiguous int32 tensor as words that other processes change, too.
    ///
    /// Nothing else may read or write it as numbers meanwhile: it is no tensor of any kernel.
    ///
    /// # Errors
    /// `TypeError` or `ValueError` if dtype, contiguity or alignment are wrong.
    pub fn words(&self, name: &'static str) -> PyResult<&[AtomicU32]> {
        let len = contiguous_len(name, self)?;
        let start = Borrows::default().take::<i32>(name, self, len, true)?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: torch or numpy owns `len` aligned numbers of 32 bits from `start` on while `self` lives, in memory
        // that can be written; every access to them is atomic, as the caller promises.
        Ok(unsafe { slice::from_raw_parts(start.cast(), len) })
    }
}

/// The memory that one call has in use.
///
/// SAFETY of its views: a call holds the Python object of each tensor, so that its storage lives, and `take` keeps the
/// views of one call apart. What no check here can see is that the storage is neither freed nor moved meanwhile: a call
/// without the interpreter's lock holds the storage itself ([`Tensor::storage`]), and one with the lock runs no Python.
/// Two calls at a time on the same memory are the caller's race, as with any operator of PyTorch.
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
    /// The errors of [`Self::slice`].
    #[expect(
        clippy::mut_from_ref,
        reason = "torch owns the memory, and `take` keeps the views apart"
    )]
    pub fn slice_mut<'t, T: TensorElement>(
        &mut self,
        name: &'static str,
        tensor: &'t TensorMut,
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
    /// The errors of [`Self::slice`].
    pub fn rows<'t, T: TensorElement>(
        &mut self,
        name: &'static str,
        tensor: &'t Tensor,
    ) -> PyResult<Rows<'t, T>> {
        let (len, width, stride) = rows_of(name, tensor)?;
        let span = tensor.description.span(stride);
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
    /// The errors of [`Self::slice`].
    pub fn rows_mut<'t, T: TensorElement>(
        &mut self,
        name: &'static str,
        tensor: &'t TensorMut,
    ) -> PyResult<RowsMut<'t, T>> {
        let (len, width, stride) = rows_of(name, tensor)?;
        let span = tensor.description.span(stride);
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
        // An element of this type is all that the views below rely on.
        const { assert!(size_of::<T>() == T::DTYPE.size()) };
        tensor.description.check_dtype::<T>(name)?;
        let start = tensor.description.address;
        let bytes = start..start + len * size_of::<T>();
        if len > 0 && (start == 0 || !start.is_multiple_of(align_of::<T>())) {
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
        Ok(std::ptr::with_exposed_provenance_mut(start))
    }
}

fn contiguous_len(name: &str, tensor: &Tensor) -> PyResult<usize> {
    let (len, width, stride) = rows_of(name, tensor)?;
    if len > 1 && width > 0 && stride != width {
        let strides = &tensor.description.strides;
        let message = format!("{name}: expected a contiguous tensor, got strides {strides:?}");
        return Err(PyValueError::new_err(message));
    }
    Ok(tensor.shape().iter().product())
}

/// Number, width and stride of a tensor's rows.
fn rows_of(name: &str, tensor: &Tensor) -> PyResult<(usize, usize, usize)> {
    let stride = tensor.description.row_stride(name)?;
    let (len, rest) = tensor.shape().split_first().unwrap_or((&1, &[]));
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
