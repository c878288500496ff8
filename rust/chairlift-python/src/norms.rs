//! Bindings of the norms.

use crate::call::{call, named, with_dtype};
use chairlift_kernels::ops::{gated_norm, norm};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::prelude::*;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(add_rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(layer_norm, module)?)?;
    module.add_function(wrap_pyfunction!(add_layer_norm, module)?)?;
    module.add_function(wrap_pyfunction!(gated_rms_norm, module)?)
}

/// out = x / rms(x) * (weight + offset) over the last axis.
#[pyfunction]
#[pyo3(signature = (x, weight, eps, out, offset=0.0))]
fn rms_norm(
    py: Python<'_>,
    x: Tensor,
    weight: Tensor,
    eps: f32,
    out: TensorMut,
    offset: f32,
) -> PyResult<()> {
    let arguments = named!(x, weight, out);
    call(
        py,
        arguments,
        |(x, ..)| x.numel(),
        move |(x, weight, out)| {
            x.dims::<2>()?;
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let x = x.rows::<T>(borrows)?;
                let weight = weight.slice(borrows)?;
                let out = out.rows_mut(borrows)?;
                Ok(norm::rms_norm(x, weight, eps, offset, out)?)
            })
        },
    )
}

/// Adds `update` to `x` in place, then as `rms_norm`.
#[pyfunction]
#[pyo3(signature = (x, update, weight, eps, out, offset=0.0))]
fn add_rms_norm(
    py: Python<'_>,
    x: TensorMut,
    update: Tensor,
    weight: Tensor,
    eps: f32,
    out: TensorMut,
    offset: f32,
) -> PyResult<()> {
    let arguments = named!(x, update, weight, out);
    call(
        py,
        arguments,
        |(x, ..)| 2 * x.numel(),
        move |(x, update, weight, out)| {
            x.dims::<2>()?;
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let x = x.rows_mut::<T>(borrows)?;
                let update = update.rows(borrows)?;
                let weight = weight.slice(borrows)?;
                let out = out.rows_mut(borrows)?;
                Ok(norm::add_rms_norm(x, update, weight, eps, offset, out)?)
            })
        },
    )
}

/// out = (x - mean(x)) / deviation(x) * weight + bias over the last axis.
#[pyfunction]
fn layer_norm(
    py: Python<'_>,
    x: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f32,
    out: TensorMut,
) -> PyResult<()> {
    let arguments = named!(x, weight, bias, out);
    call(
        py,
        arguments,
        |(x, ..)| x.numel(),
        move |(x, weight, bias, out)| {
            x.dims::<2>()?;
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let x = x.rows::<T>(borrows)?;
                let weight = weight.slice(borrows)?;
                let bias = bias.optional_slice(borrows)?;
                let out = out.rows_mut(borrows)?;
                Ok(norm::layer_norm(x, weight, bias, eps, out)?)
            })
        },
    )
}

/// Adds `update` to `x` in place, then as `layer_norm`.
#[pyfunction]
fn add_layer_norm(
    py: Python<'_>,
    x: TensorMut,
    update: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f32,
    out: TensorMut,
) -> PyResult<()> {
    let arguments = named!(x, update, weight, bias, out);
    call(
        py,
        arguments,
        |(x, ..)| 2 * x.numel(),
        move |(x, update, weight, bias, out)| {
            x.dims::<2>()?;
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let x = x.rows_mut::<T>(borrows)?;
                let update = update.rows(borrows)?;
                let weight = weight.slice(borrows)?;
                let bias = bias.optional_slice(borrows)?;
                let out = out.rows_mut(borrows)?;
                Ok(norm::add_layer_norm(x, update, weight, bias, eps, out)?)
            })
        },
    )
}

/// x = y / rms(y) * weight of each group of elements, with y = x * silu(gate); x = y without a weight.
#[pyfunction]
fn gated_rms_norm(
    py: Python<'_>,
    x: TensorMut,
    gate: Tensor,
    weight: Option<Tensor>,
    group_size: usize,
    eps: f32,
) -> PyResult<()> {
    let arguments = named!(x, gate, weight);
    call(
        py,
        arguments,
        |(x, ..)| 8 * x.numel(),
        move |(x, gate, weight)| {
            x.dims::<2>()?;
            gate.dims::<2>()?;
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let x = x.rows_mut::<T>(borrows)?;
                let gate = gate.rows(borrows)?;
                let weight = weight.optional_slice::<f32>(borrows)?;
                Ok(gated_norm::gated_rms_norm(
                    x, gate, weight, group_size, eps,
                )?)
            })
        },
    )
}
