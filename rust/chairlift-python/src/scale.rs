//! Bindings of sums, gates and numbers with a factor.

use crate::{
    kernels::{numel, with_dtype},
    recording::{Argument, Call, call},
};
use chairlift_kernels::{bf16, ops::scale as kernels};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorMut};
use pyo3::prelude::*;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(add_scaled, module)?)?;
    module.add_function(wrap_pyfunction!(gate_by_sigmoid, module)?)?;
    module.add_function(wrap_pyfunction!(scale, module)?)
}

struct AddScaled {
    x: TensorMut,
    update: Tensor,
    multiplier: f32,
}

impl Call for AddScaled {
    fn work(&self) -> usize {
        numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![("x", &*self.x), ("update", &self.update)]
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>("x")?;
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows_mut::<T>("x", &self.x)?;
            let update = borrows.rows::<T>("update", &self.update)?;
            Ok(kernels::add_scaled(x, update, self.multiplier)?)
        })
    }
}

/// x += multiplier * update.
#[pyfunction]
#[pyo3(signature = (x, update, multiplier=1.0))]
fn add_scaled(py: Python<'_>, x: TensorMut, update: Tensor, multiplier: f32) -> PyResult<()> {
    let sum = AddScaled {
        x,
        update,
        multiplier,
    };
    call(py, sum)
}

struct GateBySigmoid {
    x: TensorMut,
    gate: Tensor,
}

impl Call for GateBySigmoid {
    fn work(&self) -> usize {
        8 * numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![("x", &*self.x), ("gate", &self.gate)]
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>("x")?;
        let [_, width] = self.gate.dims("gate")?;
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows_mut::<T>("x", &self.x)?;
            if width == 1 {
                let gate = borrows.rows::<f32>("gate", &self.gate)?;
                return Ok(kernels::gate_by_sigmoid(x, gate)?);
            }
            let gate = borrows.rows::<T>("gate", &self.gate)?;
            Ok(kernels::gate_by_sigmoid(x, gate)?)
        })
    }
}

/// x /= 1 + exp(-gate); a gate of one column is float32, and of the whole row.
#[pyfunction]
fn gate_by_sigmoid(py: Python<'_>, x: TensorMut, gate: Tensor) -> PyResult<()> {
    call(py, GateBySigmoid { x, gate })
}

struct Scale {
    x: TensorMut,
    multiplier: f32,
    soft_cap: Option<f32>,
}

impl Call for Scale {
    fn work(&self) -> usize {
        numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![("x", &*self.x)]
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>("x")?;
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows_mut::<T>("x", &self.x)?;
            Ok(kernels::scale(x, self.multiplier, self.soft_cap)?)
        })
    }
}

/// `x = multiplier * x`, then `soft_cap * tanh(x / soft_cap)` if given.
#[pyfunction]
#[pyo3(signature = (x, multiplier=1.0, soft_cap=None))]
fn scale(py: Python<'_>, x: TensorMut, multiplier: f32, soft_cap: Option<f32>) -> PyResult<()> {
    let numbers = Scale {
        x,
        multiplier,
        soft_cap,
    };
    call(py, numbers)
}
