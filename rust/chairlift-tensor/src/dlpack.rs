//! Torch tensors at the door, by the exchange table of `DLPack` 1.3 (<https://dmlc.github.io/dlpack>).
//!
//! One C call describes a tensor; to ask for its attributes one by one takes longer than a small kernel.

use crate::description::{Description, Dtype};
use pyo3::exceptions::{PyImportError, PyTypeError, PyValueError};
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
    is_neg: Method,
    untyped_storage: Method,
    describe: Describe,
}

/// A method of that class without arguments: a look-up by name takes longer than the call, and a tuple as long.
struct Method(Py<PyAny>);

impl Method {
    fn of<'py>(&self, object: Borrowed<'_, 'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        let end = ptr::null_mut::<ffi::PyObject>();
        // SAFETY: two objects that live and the end of the arguments, and the interpreter is held; a result is new.
        unsafe {
            let result = ffi::PyObject_CallFunctionObjArgs(self.0.as_ptr(), object.as_ptr(), end);
            Bound::from_owned_ptr_or_err(py, result)
        }
    }
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
                    is_neg: Method(tensor.getattr("is_neg")?.unbind()),
                    untyped_storage: Method(tensor.getattr("untyped_storage")?.unbind()),
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

/// The memory of a `torch.Tensor`.
pub(crate) fn describe(object: Borrowed<'_, '_, PyAny>) -> PyResult<Description> {
    let view = view(object)?;
    let (CPU, Some(dtype)) = (view.device_type, dtype(&view)) else {
        return Err(refusal(object)?);
    };
    // SAFETY: the view is that of a tensor that lives, and the interpreter is held.
    let (shape, strides) = unsafe { view.axes() };
    let shape: Vec<_> = shape.iter().map(|&size| size as usize).collect();
    let strides = strides.iter().map(|&stride| stride as isize).collect();
    if view.address() == 0 && !shape.contains(&0) {
        return Err(refusal(object)?);
    }
    // The numbers of such a view have another sign than the memory; the description does not say so.
    let py = object.py();
    if Torch::get(py)?.is_neg.of(object)?.is_truthy()? {
        let message =
            "expected numbers as they are, got a negated view: resolve_neg() makes a copy";
        return Err(PyValueError::new_err(message));
    }
    Description::new(view.address(), dtype, shape, strides)
}

/// What owns the memory of a `torch.Tensor`.
pub(crate) fn storage(object: Borrowed<'_, '_, PyAny>) -> PyResult<Py<PyAny>> {
    let torch = Torch::get(object.py())?;
    Ok(torch.untyped_storage.of(object)?.unbind())
}

/// Whether a `torch.Tensor` still is what a description says.
pub(crate) fn is_as_described(
    object: Borrowed<'_, '_, PyAny>,
    description: &Description,
) -> PyResult<bool> {
    let view = view(object)?;
    // SAFETY: the view is that of a tensor that lives, and the interpreter is held.
    let (shape, strides) = unsafe { view.axes() };
    Ok(view.device_type == CPU
        && view.address() == description.address
        && dtype(&view) == Some(description.dtype)
        && shape
            .iter()
            .map(|&size| size as usize)
            .eq(description.shape.iter().copied())
        && strides
            .iter()
            .map(|&stride| stride as isize)
            .eq(description.strides.iter().copied()))
}

/// What torch says of a tensor, which keeps what the answer points to.
fn view(object: Borrowed<'_, '_, PyAny>) -> PyResult<DlTensor> {
    let py = object.py();
    let torch = Torch::get(py)?;
    let class = torch.tensor.bind(py).as_ptr().cast();
    // SAFETY: both are types, and the interpreter is held. It is the type that decides about the memory of an object,
    // and not its `__class__`, which `isinstance` believes.
    if unsafe { ffi::PyType_IsSubtype(object.get_type_ptr(), class) } == 0 {
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
    if status == 0 {
        return Ok(view);
    }
    // What torch says is long, and names no argument.
    drop(PyErr::take(py));
    Err(refusal(object)?)
}

impl DlTensor {
    fn address(&self) -> usize {
        self.data
            .expose_provenance()
            .wrapping_add(self.byte_offset as usize)
    }

    /// Sizes and strides.
    ///
    /// # Safety
    /// The tensor lives and is not changed while they are in use.
    unsafe fn axes(&self) -> (&[i64], &[i64]) {
        let ndim = self.ndim as usize;
        // SAFETY: `ndim` numbers each (strides, too, since 1.2) in the tensor; the caller's promise.
        unsafe { (numbers(self.shape, ndim), numbers(self.strides, ndim)) }
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
        let (names, got) = (Dtype::ALL.map(Dtype::name), attribute("dtype")?);
        if names
            .iter()
            .any(|name| got.strip_prefix("torch.") == Some(name))
        {
            let got = object.get_type().name()?.to_string();
            format!("expected a tensor with memory of its own, got {got}")
        } else {
            format!("expected one of {}, got {got}", names.join(", "))
        }
    };
    Ok(PyTypeError::new_err(message))
}

fn dtype(view: &DlTensor) -> Option<Dtype> {
    match (view.code, view.bits, view.lanes) {
        (2, 32, 1) => Some(Dtype::Float32),
        (4, 16, 1) => Some(Dtype::Bfloat16),
        (1, 8, 1) => Some(Dtype::Uint8),
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
