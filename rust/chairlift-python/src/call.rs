//! The one way from a function of the module to a kernel.
//!
//! ```text
//!   call(py, named!(x, out), |(x, _)| x.numel(), move |(x, out)| {
//!       let borrows = &mut Borrows::default();
//!       Ok(kernel(x.rows::<f32>(borrows)?, eps, out.rows_mut::<f32>(borrows)?)?)
//!   })
//! ```
//!
//! A binding names its tensors, says about how much work it is, and gives what borrows their memory and computes. The call
//! runs at once, with the interpreter or without it ([`crate::detach`]), or is kept ([`crate::recording`]).

use crate::{
    detach::{detach, is_long, with_gil},
    recording::{self, Call, NamedTensor},
};
use chairlift_kernels::{Rows, RowsMut};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorElement, TensorMut};
use pyo3::prelude::*;

/// Runs a call, or keeps it where this thread is recording.
///
/// # Errors
/// Those of `run`.
pub(crate) fn call<A, W, R>(py: Python<'_>, arguments: A, work: W, run: R) -> PyResult<()>
where
    A: Arguments + 'static,
    W: Fn(&A) -> usize + Send + Sync + 'static,
    R: Fn(&A) -> PyResult<()> + Send + Sync + 'static,
{
    let call = KernelCall {
        arguments,
        work,
        run,
    };
    if let Some(calls) = recording::kept() {
        calls.lock().push(Box::new(call));
        return Ok(());
    }
    if !is_long(call.work()) {
        return with_gil(|| call.run());
    }
    // Another thread may give a tensor other memory meanwhile.
    let tensors = call.tensors();
    let storages = tensors.iter().map(|(_, tensor)| tensor.storage(py));
    let _storages = storages.collect::<PyResult<Vec<_>>>()?;
    detach(py, || call.run())
}

struct KernelCall<A, W, R> {
    arguments: A,
    work: W,
    run: R,
}

impl<A, W, R> Call for KernelCall<A, W, R>
where
    A: Arguments,
    W: Fn(&A) -> usize + Send + Sync,
    R: Fn(&A) -> PyResult<()> + Send + Sync,
{
    fn work(&self) -> usize {
        (self.work)(&self.arguments)
    }

    fn tensors(&self) -> Vec<NamedTensor<'_>> {
        let mut tensors = Vec::new();
        self.arguments.list(&mut tensors);
        tensors
    }

    fn run(&self) -> PyResult<()> {
        (self.run)(&self.arguments)
    }
}

/// What a call holds as long as it may run.
pub(crate) trait Arguments: Send + Sync {
    /// Lists the tensors among them.
    fn list<'a>(&'a self, tensors: &mut Vec<NamedTensor<'a>>);
}

/// A tensor that knows the name of its argument.
pub(crate) struct Named<T> {
    name: &'static str,
    tensor: T,
}

impl<T> Named<T> {
    pub(crate) fn new(name: &'static str, tensor: T) -> Self {
        Self { name, tensor }
    }
}

/// Tensors with the names of the variables that hold them.
macro_rules! named {
    ($($tensor:ident),+) => {
        ($($crate::call::Named::new(stringify!($tensor), $tensor),)+)
    };
}
pub(crate) use named;

/// Computes with the element type of a tensor, float32 or bfloat16.
macro_rules! with_dtype {
    ($tensor:expr, |$T:ident| $call:expr) => {
        match $tensor.dtype() {
            chairlift_tensor::Dtype::Float32 => {
                type $T = f32;
                $call
            }
            chairlift_tensor::Dtype::Bfloat16 => {
                type $T = chairlift_kernels::bf16;
                $call
            }
            _ => Err($tensor.wrong_dtype("float32 or bfloat16")),
        }
    };
}
pub(crate) use with_dtype;

impl<T: AsRef<Tensor>> Named<T> {
    pub(crate) fn tensor(&self) -> &Tensor {
        self.tensor.as_ref()
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.tensor().dtype()
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.tensor().shape()
    }

    /// Elements of the tensor.
    pub(crate) fn numel(&self) -> usize {
        self.shape().iter().product()
    }

    pub(crate) fn dims<const N: usize>(&self) -> PyResult<[usize; N]> {
        self.tensor().dims(self.name)
    }

    pub(crate) fn wrong_dtype(&self, expected: &str) -> PyErr {
        self.tensor().wrong_dtype(self.name, expected)
    }

    pub(crate) fn slice<E: TensorElement>(&self, borrows: &mut Borrows) -> PyResult<&[E]> {
        borrows.slice(self.name, self.tensor())
    }

    pub(crate) fn rows<E: TensorElement>(&self, borrows: &mut Borrows) -> PyResult<Rows<'_, E>> {
        borrows.rows(self.name, self.tensor())
    }
}

impl Named<TensorMut> {
    pub(crate) fn slice_mut<E: TensorElement>(&self, borrows: &mut Borrows) -> PyResult<&mut [E]> {
        borrows.slice_mut(self.name, &self.tensor)
    }

    pub(crate) fn rows_mut<E: TensorElement>(
        &self,
        borrows: &mut Borrows,
    ) -> PyResult<RowsMut<'_, E>> {
        borrows.rows_mut(self.name, &self.tensor)
    }
}

/// A tensor that may be left out.
impl Named<Option<Tensor>> {
    pub(crate) fn optional_slice<E: TensorElement>(
        &self,
        borrows: &mut Borrows,
    ) -> PyResult<Option<&[E]>> {
        let tensor = self.tensor.as_ref();
        tensor.map(|t| borrows.slice(self.name, t)).transpose()
    }

    pub(crate) fn optional_rows<E: TensorElement>(
        &self,
        borrows: &mut Borrows,
    ) -> PyResult<Option<Rows<'_, E>>> {
        let tensor = self.tensor.as_ref();
        tensor.map(|t| borrows.rows(self.name, t)).transpose()
    }
}

impl Arguments for Named<Tensor> {
    fn list<'a>(&'a self, tensors: &mut Vec<NamedTensor<'a>>) {
        tensors.push((self.name, &self.tensor));
    }
}

impl Arguments for Named<TensorMut> {
    fn list<'a>(&'a self, tensors: &mut Vec<NamedTensor<'a>>) {
        tensors.push((self.name, &self.tensor));
    }
}

impl Arguments for Named<Option<Tensor>> {
    fn list<'a>(&'a self, tensors: &mut Vec<NamedTensor<'a>>) {
        tensors.extend(self.tensor.iter().map(|tensor| (self.name, tensor)));
    }
}

impl<T: Arguments> Arguments for Option<T> {
    fn list<'a>(&'a self, tensors: &mut Vec<NamedTensor<'a>>) {
        if let Some(arguments) = self {
            arguments.list(tensors);
        }
    }
}

/// An object of the module has no tensors of Python.
impl<T: Send + Sync> Arguments for Py<T> {
    fn list<'a>(&'a self, _: &mut Vec<NamedTensor<'a>>) {}
}

macro_rules! tuples {
    ($(($($T:ident),+))+) => {$(
        #[allow(non_snake_case, reason = "a value has the name of its type")]
        impl<$($T: Arguments),+> Arguments for ($($T,)+) {
            fn list<'a>(&'a self, tensors: &mut Vec<NamedTensor<'a>>) {
                let ($($T,)+) = self;
                $($T.list(tensors);)+
            }
        }
    )+};
}

tuples! {
    (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) (A, B, C, D, E, F, G)
    (A, B, C, D, E, F, G, H) (A, B, C, D, E, F, G, H, I)
}
