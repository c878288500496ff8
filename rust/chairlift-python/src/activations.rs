//! Bindings of the activations.

use crate::{
    kernels::{numel, with_dtype},
    recording::{Argument, Call, call},
};
use chairlift_kernels::{
    bf16,
    ops::activation::{self, Activation},
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(activate, module)?)?;
    module.add_function(wrap_pyfunction!(activate_mul, module)?)
}

struct Activate {
    x: Tensor,
    activation: Activation,
    is_gated: bool,
    up: Option<Tensor>,
    out: TensorMut,
}

impl Activate {
    fn name(&self) -> &'static str {
        match (self.is_gated, &self.up) {
            (false, _) => "x",
            (true, None) => "gate_up",
            (true, Some(_)) => "gate",
        }
    }
}

impl Call for Activate {
    fn work(&self) -> usize {
        numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        let up = self.up.as_ref().map(|up| ("up", up));
        [(self.name(), &self.x), ("out", &*self.out)]
            .into_iter()
            .chain(up)
            .collect()
    }

    fn run(&self) -> PyResult<()> {
        self.x.dims::<2>(self.name())?;
        self.out.dims::<2>("out")?;
        with_dtype!(self.x, self.name(), |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows::<T>(self.name(), &self.x)?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            if let Some(up) = &self.up {
                up.dims::<2>("up")?;
                let up = borrows.rows::<T>("up", up)?;
                activation::activate_mul_apart(self.activation, x, up, out)?;
            } else if self.is_gated {
                activation::activate_mul(self.activation, x, out)?;
            } else {
                activation::activate(self.activation, x, out)?;
            }
            Ok(())
        })
    }
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
    let activate = Activate {
        x,
        activation: self::activation(activation)?,
        is_gated: false,
        up: None,
        out,
    };
    call(py, activate)
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
    let activate = Activate {
        x: gate_up,
        activation: self::activation(activation)?,
        is_gated: true,
        up,
        out,
    };
    call(py, activate)
}
