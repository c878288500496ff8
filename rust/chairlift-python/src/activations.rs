//! Bindings of the activations.

use crate::call::{call, named, with_dtype};
use chairlift_kernels::ops::activation::{self, Activation};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(activate, module)?)?;
    module.add_function(wrap_pyfunction!(activate_mul, module)?)
}

pub(crate) fn activation(name: &str) -> PyResult<Activation> {
    let found = Activation::ALL.into_iter().find(|a| a.name() == name);
    found.ok_or_else(|| {
        let known = Activation::ALL.map(Activation::name).join(", ");
        PyValueError::new_err(format!("activation: expected one of {known}, got {name}"))
    })
}

/// out = activation(x).
#[pyfunction]
fn activate(py: Python<'_>, x: Tensor, activation: &str, out: TensorMut) -> PyResult<()> {
    let activation = self::activation(activation)?;
    call(
        py,
        named!(x, out),
        |(x, _)| x.numel(),
        move |(x, out)| {
            x.dims::<2>()?;
            out.dims::<2>()?;
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let (x, out) = (x.rows::<T>(borrows)?, out.rows_mut(borrows)?);
                Ok(activation::activate(activation, x, out)?)
            })
        },
    )
}

/// out = activation(gate) * up; `gate_up` holds both, or the gates alone where there is `up`.
#[pyfunction]
#[pyo3(signature = (gate_up, activation, out, up=None))]
fn activate_mul(
    py: Python<'_>,
    gate_up: Tensor,
    activation: &str,
    out: TensorMut,
    up: Option<Tensor>,
) -> PyResult<()> {
    let activation = self::activation(activation)?;
    let Some(up) = up else {
        let arguments = named!(gate_up, out);
        return call(
            py,
            arguments,
            |(x, _)| x.numel(),
            move |(gate_up, out)| {
                gate_up.dims::<2>()?;
                out.dims::<2>()?;
                with_dtype!(gate_up, |T| {
                    let borrows = &mut Borrows::default();
                    let (gate_up, out) = (gate_up.rows::<T>(borrows)?, out.rows_mut(borrows)?);
                    Ok(activation::activate_mul(activation, gate_up, out)?)
                })
            },
        );
    };
    let gate = gate_up;
    let arguments = named!(gate, up, out);
    call(
        py,
        arguments,
        |(x, ..)| x.numel(),
        move |(gate, up, out)| {
            gate.dims::<2>()?;
            out.dims::<2>()?;
            with_dtype!(gate, |T| {
                let borrows = &mut Borrows::default();
                let (gate, out) = (gate.rows::<T>(borrows)?, out.rows_mut(borrows)?);
                up.dims::<2>()?;
                let up = up.rows(borrows)?;
                Ok(activation::activate_mul_apart(activation, gate, up, out)?)
            })
        },
    )
}
