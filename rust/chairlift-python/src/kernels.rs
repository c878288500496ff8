//! Bindings of the CPU kernels: check at the door, release the GIL, call.

use crate::detach::detach_long;
use crate::linear;
use chairlift_kernels::dispatch::instruction_set;
use chairlift_kernels::layout::{CacheShape, check_block_size};
use chairlift_kernels::paged_attention::Layer;
use chairlift_kernels::rope::HeadNorm;
use chairlift_kernels::sampling::{Draws, Parameters};
use chairlift_kernels::stored::{Stored, check_int8};
use chairlift_kernels::tensor::{Borrows, Dtype, Tensor, TensorElement};
use chairlift_kernels::work_items::Sequences;
use chairlift_kernels::{bf16, pool, sampling};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Registers the kernels with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    linear::register(module)?;
    module.add_function(wrap_pyfunction!(rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(add_rms_norm, module)?)?;
    module.add_function(wrap_pyfunction!(rope, module)?)?;
    module.add_function(wrap_pyfunction!(silu_mul, module)?)?;
    module.add_function(wrap_pyfunction!(kv_write, module)?)?;
    module.add_function(wrap_pyfunction!(paged_attention, module)?)?;
    module.add_function(wrap_pyfunction!(sample, module)?)?;
    module.add_function(wrap_pyfunction!(cpu_features, module)?)?;
    module.add_function(wrap_pyfunction!(set_num_threads, module)?)
}

/// Calls a function that is generic over the element type with the type of a tensor.
macro_rules! with_dtype {
    ($tensor:expr, $name:literal, |$T:ident| $call:expr) => {
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

pub(crate) fn optional<'t, T: TensorElement>(
    borrows: &mut Borrows,
    name: &'static str,
    tensor: Option<&'t Tensor>,
) -> PyResult<Option<&'t [T]>> {
    tensor.map(|tensor| borrows.slice(name, tensor)).transpose()
}

/// out = x / rms(x) * weight over the last axis.
#[pyfunction]
fn rms_norm(py: Python<'_>, x: Tensor, weight: Tensor, eps: f32, out: Tensor) -> PyResult<()> {
    x.dims::<2>("x")?;
    with_dtype!(x, "x", |T| {
        let mut borrows = Borrows::default();
        let x = borrows.rows::<T>("x", &x)?;
        let weight = borrows.slice::<T>("weight", &weight)?;
        let out = borrows.rows_mut::<T>("out", &out)?;
        let work = x.len() * x.width();
        detach_long(py, work, || {
            chairlift_kernels::norm::rms_norm(x, weight, eps, out)
        })?;
        Ok(())
    })
}

/// Adds `update` to `x` in place, then as `rms_norm`.
#[pyfunction]
fn add_rms_norm(
    py: Python<'_>,
    x: Tensor,
    update: Tensor,
    weight: Tensor,
    eps: f32,
    out: Tensor,
) -> PyResult<()> {
    x.dims::<2>("x")?;
    with_dtype!(x, "x", |T| {
        let mut borrows = Borrows::default();
        let x = borrows.rows_mut::<T>("x", &x)?;
        let update = borrows.rows::<T>("update", &update)?;
        let weight = borrows.slice::<T>("weight", &weight)?;
        let out = borrows.rows_mut::<T>("out", &out)?;
        let work = 2 * x.len() * x.width();
        detach_long(py, work, || {
            chairlift_kernels::norm::add_rms_norm(x, update, weight, eps, out)
        })?;
        Ok(())
    })
}

/// Rotates `x` in place, after an RMS norm per head if given.
#[pyfunction]
#[pyo3(signature = (x, positions, cos_sin, norm_weight=None, eps=1e-6))]
fn rope(
    py: Python<'_>,
    x: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    norm_weight: Option<Tensor>,
    eps: f32,
) -> PyResult<()> {
    let [_, _, head_dim] = x.dims("x")?;
    let [_, width] = cos_sin.dims("cos_sin")?;
    if width != head_dim {
        let message = format!("cos_sin: expected head_dim, {head_dim} columns, got {width}");
        return Err(PyValueError::new_err(message));
    }
    with_dtype!(x, "x", |T| {
        let mut borrows = Borrows::default();
        let positions = borrows.slice::<i32>("positions", &positions)?;
        let cos_sin = borrows.rows::<f32>("cos_sin", &cos_sin)?;
        let weight = optional::<T>(&mut borrows, "norm_weight", norm_weight.as_ref())?;
        let norm = weight.map(|weight| HeadNorm { weight, eps });
        let x = borrows.rows_mut::<T>("x", &x)?;
        let work = x.len() * x.width();
        detach_long(py, work, || {
            chairlift_kernels::rope::rope(x, positions, cos_sin, norm)
        })?;
        Ok(())
    })
}

/// out = silu(gate) * up.
#[pyfunction]
fn silu_mul(py: Python<'_>, gate_up: Tensor, out: Tensor) -> PyResult<()> {
    gate_up.dims::<2>("gate_up")?;
    out.dims::<2>("out")?;
    with_dtype!(gate_up, "gate_up", |T| {
        let mut borrows = Borrows::default();
        let gate_up = borrows.rows::<T>("gate_up", &gate_up)?;
        let out = borrows.rows_mut::<T>("out", &out)?;
        let work = gate_up.len() * gate_up.width();
        detach_long(py, work, || chairlift_kernels::silu::silu_mul(gate_up, out))?;
        Ok(())
    })
}

/// Shape of one layer's cache, given the head size.
fn cache_shape(cache: &Tensor, head_dim: usize) -> PyResult<CacheShape> {
    let [num_blocks, num_kv_heads, _] = cache.dims("cache")?;
    let shape = CacheShape {
        num_blocks,
        num_kv_heads,
        head_dim,
    };
    let len = cache.shape().iter().product();
    if cache.dtype() == Dtype::Int8 {
        check_int8(shape, len)?;
    } else {
        shape.check(len)?;
    }
    Ok(shape)
}

/// Writes keys and values to one layer's cache.
#[pyfunction]
fn kv_write(
    py: Python<'_>,
    key: Tensor,
    value: Tensor,
    cache: Tensor,
    slot_mapping: Tensor,
    block_size: usize,
) -> PyResult<()> {
    check_block_size(block_size)?;
    let [_, _, head_dim] = key.dims("key")?;
    if value.shape() != key.shape() {
        let (expected, got) = (key.shape(), value.shape());
        let message = format!("value: expected the shape of key, {expected:?}, got {got:?}");
        return Err(PyValueError::new_err(message));
    }
    let shape = cache_shape(&cache, head_dim)?;
    with_dtype!(key, "key", |T| {
        let mut borrows = Borrows::default();
        let key = borrows.rows::<T>("key", &key)?;
        let value = borrows.rows::<T>("value", &value)?;
        let slots = borrows.slice::<i32>("slot_mapping", &slot_mapping)?;
        let work = key.len() * key.width();
        if cache.dtype() == Dtype::Int8 {
            let cache = borrows.slice_mut::<i8>("cache", &cache)?;
            detach_long(py, work, || {
                chairlift_kernels::kv_write::kv_write_int8(key, value, cache, shape, slots)
            })?;
        } else {
            let cache = borrows.slice_mut::<T>("cache", &cache)?;
            detach_long(py, work, || {
                chairlift_kernels::kv_write::kv_write(key, value, cache, shape, slots)
            })?;
        }
        Ok(())
    })
}

/// Causal attention of a ragged batch over paged keys and values.
#[pyfunction]
#[pyo3(signature = (
    query, cache, block_table, rows, query_start_loc, seq_lens, out, *, scale, block_size, window=None
))]
#[expect(
    clippy::too_many_arguments,
    reason = "flat by contract: one crossing per layer"
)]
fn paged_attention(
    py: Python<'_>,
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    rows: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    out: Tensor,
    scale: f32,
    block_size: usize,
    window: Option<usize>,
) -> PyResult<()> {
    check_block_size(block_size)?;
    let [_, _, head_dim] = query.dims("query")?;
    if out.shape() != query.shape() {
        let (expected, got) = (query.shape(), out.shape());
        let message = format!("out: expected the shape of query, {expected:?}, got {got:?}");
        return Err(PyValueError::new_err(message));
    }
    block_table.dims::<2>("block_table")?;
    let shape = cache_shape(&cache, head_dim)?;
    with_dtype!(query, "query", |T| {
        let mut borrows = Borrows::default();
        let query = borrows.rows::<T>("query", &query)?;
        let layer = Layer {
            cache: if cache.dtype() == Dtype::Int8 {
                Stored::Int8(borrows.slice("cache", &cache)?)
            } else {
                Stored::Numbers(borrows.slice::<T>("cache", &cache)?)
            },
            shape,
            scale,
            window,
        };
        let sequences = Sequences {
            block_table: borrows.rows::<i32>("block_table", &block_table)?,
            rows: borrows.slice::<i32>("rows", &rows)?,
            query_start_loc: borrows.slice::<i32>("query_start_loc", &query_start_loc)?,
            seq_lens: borrows.slice::<i32>("seq_lens", &seq_lens)?,
        };
        let out = borrows.rows_mut::<T>("out", &out)?;
        let work = query.width().saturating_mul(sequences.num_pairs());
        detach_long(py, work, || {
            chairlift_kernels::paged_attention::paged_attention(query, &layer, &sequences, out)
        })?;
        Ok(())
    })
}

/// Draws one token per row.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "flat by contract: one crossing per step"
)]
fn sample(
    py: Python<'_>,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    position: Tensor,
    tokens: Tensor,
    counts: Tensor,
    logprobs: Tensor,
    ranks: Tensor,
) -> PyResult<()> {
    logits.dims::<2>("logits")?;
    let mut borrows = Borrows::default();
    let logits = borrows.rows::<f32>("logits", &logits)?;
    let parameters = Parameters {
        temperature: borrows.slice("temperature", &temperature)?,
        top_k: borrows.slice("top_k", &top_k)?,
        top_p: borrows.slice("top_p", &top_p)?,
        min_p: borrows.slice("min_p", &min_p)?,
        seed: borrows.slice("seed", &seed)?,
        index: borrows.slice("index", &index)?,
        position: borrows.slice("position", &position)?,
    };
    let draws = Draws {
        tokens: borrows.slice_mut("tokens", &tokens)?,
        counts: borrows.slice_mut("counts", &counts)?,
        logprobs: borrows.slice_mut("logprobs", &logprobs)?,
        ranks: borrows.slice_mut("ranks", &ranks)?,
    };
    let work = logits.len() * logits.width();
    detach_long(py, work, || sampling::sample(logits, &parameters, draws))?;
    Ok(())
}

/// Instruction set that the kernels use here: `avx512bf16`, `avx512vnni`, `avx512`, `avx2` or
/// `portable`.
#[pyfunction]
fn cpu_features() -> &'static str {
    instruction_set().name()
}

/// Sets the kernels' threads.
#[pyfunction]
fn set_num_threads(num_threads: usize) -> PyResult<()> {
    if num_threads == 0 {
        return Err(PyValueError::new_err(
            "num_threads: expected at least 1, got 0",
        ));
    }
    pool::set_num_threads(num_threads);
    Ok(())
}
