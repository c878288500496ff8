//! Bindings of the norms.

use crate::{
    kernels::{numel, optional, with_dtype},
    recording::{Argument, Call, call},
};
use chairlift_kernels::{
    bf16,
    ops::{gated_norm, norm},
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorMut};
use pyo3::prelude::*;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(add_rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(layer_norm, module)?)?;
    module.add_function(wrap_pyfunction!(add_layer_norm, module)?)?;
    module.add_function(wrap_pyfunction!(gated_rms_norm, module)?)
}

struct RmsNorm {
    x: Tensor,
    weight: Tensor,
    eps: f32,
    offset: f32,
    out: TensorMut,
}

impl Call for RmsNorm {
    fn work(&self) -> usize {
        numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![
            ("x", &self.x),
            ("weight", &self.weight),
            ("out", &*self.out),
        ]
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>("x")?;
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows::<T>("x", &self.x)?;
            let weight = borrows.slice::<T>("weight", &self.weight)?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            Ok(norm::rms_norm(x, weight, self.eps, self.offset, out)?)
        })
    }
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
    call(
        py,
        RmsNorm {
            x,
            weight,
            eps,
            offset,
            out,
        },
    )
}

struct AddRmsNorm {
    x: TensorMut,
    update: Tensor,
    weight: Tensor,
    eps: f32,
    offset: f32,
    out: TensorMut,
}

impl Call for AddRmsNorm {
    fn work(&self) -> usize {
        2 * numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![
            ("x", &*self.x),
            ("update", &self.update),
            ("weight", &self.weight),
            ("out", &*self.out),
        ]
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>("x")?;
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows_mut::<T>("x", &self.x)?;
            let update = borrows.rows::<T>("update", &self.update)?;
            let weight = borrows.slice::<T>("weight", &self.weight)?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            let eps = self.eps;
            Ok(norm::add_rms_norm(
                x,
                update,
                weight,
                eps,
                self.offset,
                out,
            )?)
        })
    }
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
    call(
        py,
        AddRmsNorm {
            x,
            update,
            weight,
            eps,
            offset,
            out,
        },
    )
}

struct LayerNorm {
    x: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f32,
    out: TensorMut,
}

impl Call for LayerNorm {
    fn work(&self) -> usize {
        numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        let tensors = [
            ("x", &self.x),
            ("weight", &self.weight),
            ("out", &*self.out),
        ];
        let bias = self.bias.as_ref().map(|bias| ("bias", bias));
        tensors.into_iter().chain(bias).collect()
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>("x")?;
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows::<T>("x", &self.x)?;
            let weight = borrows.slice::<T>("weight", &self.weight)?;
            let bias = optional::<T>(&mut borrows, "bias", self.bias.as_ref())?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            Ok(norm::layer_norm(x, weight, bias, self.eps, out)?)
        })
    }
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
    let norm = LayerNorm {
        x,
        weight,
        bias,
        eps,
        out,
    };
    call(py, norm)
}

struct AddLayerNorm {
    x: TensorMut,
    update: Tensor,
    weight: Tensor,
    bias: Option<Tensor>,
    eps: f32,
    out: TensorMut,
}

impl Call for AddLayerNorm {
    fn work(&self) -> usize {
        2 * numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        let tensors = [
            ("x", &*self.x),
            ("update", &self.update),
            ("weight", &self.weight),
            ("out", &*self.out),
        ];
        let bias = self.bias.as_ref().map(|bias| ("bias", bias));
        tensors.into_iter().chain(bias).collect()
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>("x")?;
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows_mut::<T>("x", &self.x)?;
            let update = borrows.rows::<T>("update", &self.update)?;
            let weight = borrows.slice::<T>("weight", &self.weight)?;
            let bias = optional::<T>(&mut borrows, "bias", self.bias.as_ref())?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            let eps = self.eps;
            Ok(norm::add_layer_norm(x, update, weight, bias, eps, out)?)
        })
    }
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
    let norm = AddLayerNorm {
        x,
        update,
        weight,
        bias,
        eps,
        out,
    };
    call(py, norm)
}

struct GatedRmsNorm {
    x: TensorMut,
    gate: Tensor,
    weight: Option<Tensor>,
    group_size: usize,
    eps: f32,
}

impl Call for GatedRmsNorm {
    fn work(&self) -> usize {
        8 * numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        let weight = self.weight.iter().map(|weight| ("weight", weight));
        [("x", &*self.x), ("gate", &self.gate)]
            .into_iter()
            .chain(weight)
            .collect()
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>("x")?;
        self.gate.dims::<2>("gate")?;
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows_mut::<T>("x", &self.x)?;
            let gate = borrows.rows::<T>("gate", &self.gate)?;
            let weight = optional::<f32>(&mut borrows, "weight", self.weight.as_ref())?;
            Ok(gated_norm::gated_rms_norm(
                x,
                gate,
                weight,
                self.group_size,
                self.eps,
            )?)
        })
    }
}

/// x = y / rms(y) * weight of each group of numbers, with y = x * silu(gate); x = y without a weight.
#[pyfunction]
fn gated_rms_norm(
    py: Python<'_>,
    x: TensorMut,
    gate: Tensor,
    weight: Option<Tensor>,
    group_size: usize,
    eps: f32,
) -> PyResult<()> {
    let norm = GatedRmsNorm {
        x,
        gate,
        weight,
        group_size,
        eps,
    };
    call(py, norm)
}
