//! Bindings of the CPU kernels: check at the door, release the GIL, call; or keep the call ([`crate::recording`]).

use crate::recording::{Argument, Call, call};
use chairlift_kernels::{
    bf16,
    isa::dispatch::instruction_set,
    memory::pool,
    ops::{
        rope::{HeadNorm, Rotation},
        select,
    },
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorElement, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(select_rows, module)?)?;
    module.add_function(wrap_pyfunction!(rope, module)?)?;
    module.add_function(wrap_pyfunction!(cpu_features, module)?)?;
    module.add_function(wrap_pyfunction!(set_num_threads, module)?)
}

/// Calls a function that is generic over the element type with the type of a tensor.
macro_rules! with_dtype {
    ($tensor:expr, $name:expr, |$T:ident| $call:expr) => {
        match $tensor.dtype() {
            Dtype::Float32 => {
                type $T = f32;
                $call
            }
            Dtype::Bfloat16 => {
                type $T = bf16;
                $call
            }
            _ => Err($tensor.wrong_dtype($name, "float32 or bfloat16")),
        }
    };
}
pub(crate) use with_dtype;

pub(crate) fn optional<'t, T: TensorElement>(
    borrows: &mut Borrows,
    name: &'static str,
    tensor: Option<&'t Tensor>,
) -> PyResult<Option<&'t [T]>> {
    tensor.map(|tensor| borrows.slice(name, tensor)).transpose()
}

/// Numbers of a tensor.
pub(crate) fn numel(tensor: &Tensor) -> usize {
    tensor.shape().iter().product()
}

struct SelectRows {
    x: Tensor,
    rows: Tensor,
    out: TensorMut,
    multiplier: f32,
}

impl Call for SelectRows {
    fn work(&self) -> usize {
        numel(&self.out)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![("x", &self.x), ("rows", &self.rows), ("out", &*self.out)]
    }

    #[expect(clippy::float_cmp, reason = "1 is what stands for no multiplier")]
    fn run(&self) -> PyResult<()> {
        let multiplier = self.multiplier;
        if (self.x.dtype(), self.out.dtype()) == (Dtype::Bfloat16, Dtype::Float32) {
            let mut borrows = Borrows::default();
            let x = borrows.rows::<bf16>("x", &self.x)?;
            let rows = borrows.slice::<i32>("rows", &self.rows)?;
            let out = borrows.rows_mut::<f32>("out", &self.out)?;
            if multiplier == 1.0 {
                select::widen_rows(x, rows, out)?;
            } else {
                select::scaled_rows(x, rows, multiplier, out)?;
            }
            return Ok(());
        }
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let x = borrows.rows::<T>("x", &self.x)?;
            let rows = borrows.slice::<i32>("rows", &self.rows)?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            if multiplier == 1.0 {
                select::select_rows(x, rows, out)?;
            } else {
                select::scaled_rows(x, rows, multiplier, out)?;
            }
            Ok(())
        })
    }
}

/// out[i] = multiplier * x[rows[i]]; float32 `out` takes bfloat16 `x`, too.
#[pyfunction]
#[pyo3(signature = (x, rows, out, multiplier=1.0))]
fn select_rows(
    py: Python<'_>,
    x: Tensor,
    rows: Tensor,
    out: TensorMut,
    multiplier: f32,
) -> PyResult<()> {
    call(
        py,
        SelectRows {
            x,
            rows,
            out,
            multiplier,
        },
    )
}

struct Rope {
    x: TensorMut,
    positions: Tensor,
    cos_sin: Tensor,
    norm_weight: Option<Tensor>,
    eps: f32,
    norm_offset: f32,
    is_interleaved: bool,
}

impl Call for Rope {
    fn work(&self) -> usize {
        numel(&self.x)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        let tensors = [
            ("x", &*self.x),
            ("positions", &self.positions),
            ("cos_sin", &self.cos_sin),
        ];
        let norm_weight = self
            .norm_weight
            .as_ref()
            .map(|weight| ("norm_weight", weight));
        tensors.into_iter().chain(norm_weight).collect()
    }

    fn run(&self) -> PyResult<()> {
        let [_, _, head_dim] = self.x.dims("x")?;
        self.cos_sin.dims::<2>("cos_sin")?;
        with_dtype!(self.x, "x", |T| {
            let mut borrows = Borrows::default();
            let positions = borrows.slice::<i32>("positions", &self.positions)?;
            let cos_sin = borrows.rows::<f32>("cos_sin", &self.cos_sin)?;
            let weight = optional::<T>(&mut borrows, "norm_weight", self.norm_weight.as_ref())?;
            let norm = weight.map(|weight| HeadNorm {
                weight,
                eps: self.eps,
                offset: self.norm_offset,
            });
            let x = borrows.rows_mut::<T>("x", &self.x)?;
            let rotation = Rotation {
                cos_sin,
                head_dim,
                is_interleaved: self.is_interleaved,
                norm,
            };
            Ok(chairlift_kernels::ops::rope::rope(x, positions, rotation)?)
        })
    }
}

/// Rotates `x` in place, after an RMS norm per head, or over all heads, if given.
#[pyfunction]
#[pyo3(signature = (
    x, positions, cos_sin, norm_weight=None, eps=1e-6, norm_offset=0.0, is_interleaved=false
))]
#[expect(clippy::too_many_arguments, reason = "flat by contract")]
fn rope(
    py: Python<'_>,
    x: TensorMut,
    positions: Tensor,
    cos_sin: Tensor,
    norm_weight: Option<Tensor>,
    eps: f32,
    norm_offset: f32,
    is_interleaved: bool,
) -> PyResult<()> {
    call(
        py,
        Rope {
            x,
            positions,
            cos_sin,
            norm_weight,
            eps,
            norm_offset,
            is_interleaved,
        },
    )
}

/// Instruction set that the kernels use here: `amx`, `avx512bf16`, `avx512vnni`, `avx512`, `avx2` or
/// `portable`.
#[pyfunction]
fn cpu_features() -> &'static str {
    instruction_set().name()
}

/// Sets the kernels' threads.
#[pyfunction]
fn set_num_threads(num_threads: usize) -> PyResult<()> {
    let most = pool::MAX_THREADS;
    if !(1..=most).contains(&num_threads) {
        let message = format!("num_threads: expected 1 to {most}, got {num_threads}");
        return Err(PyValueError::new_err(message));
    }
    pool::set_num_threads(num_threads);
    Ok(())
}
