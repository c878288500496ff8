//! Torch tensors at the door, by the exchange table of `DLPack` 1.3 (<https://dmlc.github.io/dlpack>).
//!
//! One C call describes a tensor; to ask for its attributes one by one takes longer than a small kernel.

use super::{Dtype, Tensor};
use pyo3::exceptions::{PyImportError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::{c_int, c_void};
use std::{ptr, slice};

/// The version of the table whose layout is below.
const MAJOR: u32 = 1;
/// Memory of the host.
const CPU: i32 = 1;

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// Describes a tensor, which keeps all that the description points to; gives 0, or sets an exception.
type Describe = unsafe extern "C" fn(*mut ffi::PyObject, *mut DlTensor) -> c_int;

#[repr(C)]
struct ExchangeTable {
    major: u32,
    minor: u32,
    older: *const Self,
    /// Functions that make tensors of their own.
    others: [*const c_void; 3],
    describe: Option<Describe>,
}

/// What of torch the door looks at.
struct Torch {
    tensor: Py<PyAny>,
    describe: Describe,
}

impl Torch {
    fn get(py: Python<'_>) -> PyResult<&'static Self> {
        static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
        TORCH.get_or_try_init(py, || {
            let tensor = py.import("torch")?.getattr("Tensor")?;
            let capsule = tensor.getattr("__dlpack_c_exchange_api__")?;
            let name = c"dlpack_exchange_api".as_ptr();
            // SAFETY: any object may be asked, and the name is a C string.
            let table = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), name) };
            if table.is_null() {
                return Err(PyErr::fetch(py));
            }
            // SAFETY: what the name promises: a table that lives as long as the process. Its first
            // field tells the layout of the rest.
            let table = unsafe { &*table.cast::<ExchangeTable>() };
            match table.describe {
                Some(describe) if table.major == MAJOR => Ok(Self {
                    tensor: tensor.unbind(),
                    describe,
                }),
                _ => {
                    let got = table.major;
                    let message = format!("torch: expected DLPack {MAJOR}, got {got}");
                    Err(PyImportError::new_err(message))
                }
            }
        })
    }
}

impl Tensor {
    /// The memory of a `torch.Tensor`.
    pub(super) fn of_torch(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let torch = Torch::get(py)?;
        if !object.is_instance(torch.tensor.bind(py))? {
            let got = object.get_type().name()?.to_string();
            let message = format!("expected a torch.Tensor, got {got}");
            return Err(PyTypeError::new_err(message));
        }
        let mut view = DlTensor {
            data: ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            ndim: 0,
            code: 0,
            bits: 0,
            lanes: 0,
            shape: ptr::null(),
            strides: ptr::null(),
            byte_offset: 0,
        };
        // SAFETY: the table is of this type, whose object is alive, and the interpreter is held.
        let status = unsafe { (torch.describe)(object.as_ptr(), &raw mut view) };
        if status != 0 {
            // What torch says is long, and names no argument.
            drop(PyErr::take(py));
            return Err(refusal(object)?);
        }
        let (CPU, Some(dtype)) = (view.device_type, dtype(&view)) else {
            return Err(refusal(object)?);
        };
        let ndim = view.ndim as usize;
        // SAFETY: `ndim` numbers each (strides, too, since 1.2) in the tensor, which nobody changes while
        // the interpreter is held.
        let (shape, strides) = unsafe { (numbers(view.shape, ndim), numbers(view.strides, ndim)) };
        Ok(Self {
            address: view.data.expose_provenance() + view.byte_offset as usize,
            dtype,
            shape: shape.iter().map(|&size| size as usize).collect(),
            strides: strides.iter().map(|&stride| stride as isize).collect(),
            _object: object.to_owned().unbind(),
        })
    }
}

/// What is wrong with a tensor that is not dense, on the CPU and of a known type.
fn refusal(object: Borrowed<'_, '_, PyAny>) -> PyResult<PyErr> {
    let attribute = |name| Ok::<_, PyErr>(object.getattr(name)?.str()?.to_string());
    let message = if !object.getattr("is_cpu")?.is_truthy()? {
        format!("expected a CPU tensor, got one on {}", attribute("device")?)
    } else if attribute("layout")? != "torch.strided" {
        let got = attribute("layout")?;
        format!("expected a dense tensor, got {got}")
    } else {
        let names = Dtype::ALL.map(Dtype::name).join(", ");
        format!("expected one of {names}, got {}", attribute("dtype")?)
    };
    Ok(PyTypeError::new_err(message))
}

fn dtype(view: &DlTensor) -> Option<Dtype> {
    match (view.code, view.bits, view.lanes) {
        (2, 32, 1) => Some(Dtype::Float32),
        (4, 16, 1) => Some(Dtype::Bfloat16),
        (0, 8, 1) => Some(Dtype::Int8),
        (0, 32, 1) => Some(Dtype::Int32),
        (0, 64, 1) => Some(Dtype::Int64),
        _ => None,
    }
}

/// # Safety
/// There are `len` numbers, unless it is 0.
unsafe fn numbers<'a>(start: *const i64, len: usize) -> &'a [i64] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's.
    unsafe { slice::from_raw_parts(start, len) }
}
