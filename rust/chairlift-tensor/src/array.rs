//! Numpy arrays at the door, by the array interface protocol.

use crate::description::{Description, Dtype};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

/// Whether an object is a `numpy.ndarray` itself; numpy is imported wherever torch is.
pub(crate) fn is_array(object: Borrowed<'_, '_, PyAny>) -> PyResult<bool> {
    static ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    let array = ARRAY.get_or_try_init(py, || {
        py.import("numpy")?.getattr("ndarray").map(Bound::unbind)
    })?;
    Ok(object.get_type().is(array))
}

/// The view that version 3 of the protocol describes.
pub(crate) fn describe(array: &Bound<'_, PyAny>) -> PyResult<Description> {
    let interface = array.getattr("__array_interface__")?;
    let interface = interface.cast::<PyDict>()?;
    let entry = |name| {
        let entry = interface.get_item(name)?;
        entry.ok_or_else(|| PyTypeError::new_err(format!("array interface: no {name}")))
    };
    let (address, is_read_only): (usize, bool) = entry("data")?.extract()?;
    if is_read_only {
        return Err(PyValueError::new_err("expected a writable array"));
    }
    let (dtype, item) = match entry("typestr")?.extract::<String>()?.as_str() {
        "<f4" => (Dtype::Float32, 4),
        "<i4" => (Dtype::Int32, 4),
        "<i8" => (Dtype::Int64, 8),
        got => {
            let message = format!("expected float32, int32 or int64, got {got}");
            return Err(PyTypeError::new_err(message));
        }
    };
    let shape: Vec<usize> = numbers(&entry("shape")?)?;
    let strides = entry("strides")?;
    let strides = if strides.is_none() {
        // Contiguous: an axis is as wide as all that follow it.
        let width = |axis: usize| {
            let sizes = shape[axis + 1..].iter();
            sizes.fold(1_isize, |width, &size| width.saturating_mul(size as isize))
        };
        (0..shape.len()).map(width).collect()
    } else {
        let bytes: Vec<isize> = numbers(&strides)?;
        if bytes.iter().any(|stride| stride % item != 0) {
            return Err(PyValueError::new_err(
                "expected whole elements between rows",
            ));
        }
        bytes.iter().map(|stride| stride / item).collect()
    };
    Description::new(address, dtype, shape, strides)
}

/// The numbers of a tuple.
fn numbers<'py, T>(tuple: &Bound<'py, PyAny>) -> PyResult<Vec<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    tuple
        .cast::<PyTuple>()?
        .iter()
        .map(|number| number.extract())
        .collect()
}
