//! Bindings of rows and rotations, and of what all kernels share: instruction set and threads.

use crate::call::{call, named, with_dtype};
use chairlift_kernels::{
    bf16,
    isa::dispatch::instruction_set,
    memory::pool,
    ops::{
        rope::{HeadNorm, Rotation},
        select,
    },
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(select_rows, module)?)?;
    module.add_function(wrap_pyfunction!(rope, module)?)?;
    module.add_function(wrap_pyfunction!(cpu_features, module)?)?;
    module.add_function(wrap_pyfunction!(set_num_threads, module)?)
}

/// out[i] = multiplier * x[rows[i]]; float32 `out` takes bfloat16 `x`, too.
#[pyfunction]
#[pyo3(signature = (x, rows, out, multiplier=1.0))]
#[expect(clippy::float_cmp, reason = "1 is what stands for no multiplier")]
fn select_rows(
    py: Python<'_>,
    x: Tensor,
    rows: Tensor,
    out: TensorMut,
    multiplier: f32,
) -> PyResult<()> {
    let arguments = named!(x, rows, out);
    call(
        py,
        arguments,
        |(_, _, out)| out.numel(),
        move |(x, rows, out)| {
            let borrows = &mut Borrows::default();
            if (x.dtype(), out.dtype()) == (Dtype::Bfloat16, Dtype::Float32) {
                let (x, rows) = (x.rows::<bf16>(borrows)?, rows.slice(borrows)?);
                let out = out.rows_mut::<f32>(borrows)?;
                if multiplier == 1.0 {
                    select::widen_rows(x, rows, out)?;
                } else {
                    select::scaled_rows(x, rows, multiplier, out)?;
                }
                return Ok(());
            }
            with_dtype!(x, |T| {
                let (x, rows) = (x.rows::<T>(borrows)?, rows.slice(borrows)?);
                let out = out.rows_mut::<T>(borrows)?;
                if multiplier == 1.0 {
                    select::select_rows(x, rows, out)?;
                } else {
                    select::scaled_rows(x, rows, multiplier, out)?;
                }
                Ok(())
            })
        },
    )
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
        named!(x, positions, cos_sin, norm_weight),
        |(x, ..)| x.numel(),
        move |(x, positions, cos_sin, norm_weight)| {
            let [_, _, head_dim] = x.dims()?;
            cos_sin.dims::<2>()?;
            with_dtype!(x, |T| {
                let borrows = &mut Borrows::default();
                let positions = positions.slice(borrows)?;
                let cos_sin = cos_sin.rows(borrows)?;
                let weight = norm_weight.optional_slice::<T>(borrows)?;
                let rotation = Rotation {
                    cos_sin,
                    head_dim,
                    is_interleaved,
                    norm: weight.map(|weight| HeadNorm {
                        weight,
                        eps,
                        offset: norm_offset,
                    }),
                };
                let x = x.rows_mut(borrows)?;
                Ok(chairlift_kernels::ops::rope::rope(x, positions, rotation)?)
            })
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
    let max_threads = pool::MAX_THREADS;
    if !(1..=max_threads).contains(&num_threads) {
        let message = format!("num_threads: expected 1 to {max_threads}, got {num_threads}");
        return Err(PyValueError::new_err(message));
    }
    pool::set_num_threads(num_threads);
    Ok(())
}
