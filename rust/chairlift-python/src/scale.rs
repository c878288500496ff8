//! Bindings of sums, gates and elements with a factor.

use crate::call::{call, named, with_dtype};
use chairlift_kernels::ops::scale as kernels;
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::prelude::*;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(add_scaled, module)?)?;
    module.add_function(wrap_pyfunction!(gate_by_sigmoid, module)?)?;
    module.add_function(wrap_pyfunction!(scale, module)?)
}

/// x += multiplier * update.
#[pyfunction]
#[pyo3(signature = (x, update, multiplier=1.0))]
fn add_scaled(py: Python<'_>, x: TensorMut, update: Tensor, multiplier: f32) -> PyResult<()> {
    let arguments = named!(x, update);
    call(
        py,
        arguments,
        |(x, _)| x.numel(),
        move |(x, update)| {
            x.dims::<2>()?;
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let x = x.rows_mut::<T>(borrows)?;
                let update = update.rows(borrows)?;
                Ok(kernels::add_scaled(x, update, multiplier)?)
            })
        },
    )
}

/// x /= 1 + exp(-gate); a gate of one column is float32, and of the whole row.
#[pyfunction]
fn gate_by_sigmoid(py: Python<'_>, x: TensorMut, gate: Tensor) -> PyResult<()> {
    call(
        py,
        named!(x, gate),
        |(x, _)| 8 * x.numel(),
        |(x, gate)| {
            x.dims::<2>()?;
            let [_, width] = gate.dims()?;
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let x = x.rows_mut::<T>(borrows)?;
                if width == 1 {
                    let gate = gate.rows::<f32>(borrows)?;
                    return Ok(kernels::gate_by_sigmoid(x, gate)?);
                }
                let gate = gate.rows::<T>(borrows)?;
                Ok(kernels::gate_by_sigmoid(x, gate)?)
            })
        },
    )
}

/// `x = multiplier * x`, then `soft_cap * tanh(x / soft_cap)` if given.
#[pyfunction]
#[pyo3(signature = (x, multiplier=1.0, soft_cap=None))]
fn scale(py: Python<'_>, x: TensorMut, multiplier: f32, soft_cap: Option<f32>) -> PyResult<()> {
    call(
        py,
        named!(x),
        |(x,)| x.numel(),
        move |(x,)| {
            x.dims::<2>()?;
            with_dtype!(x, |T| {
                let x = x.rows_mut::<T>(&mut Borrows::default())?;
                Ok(kernels::scale(x, multiplier, soft_cap)?)
            })
        },
    )
}
