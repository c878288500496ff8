//! Bindings of attention and of the write to the cache that it reads.

use crate::call::{Named, call, named, with_dtype};
use chairlift_kernels::attention::{
    kv_format::KvView,
    kv_layout::{CacheShape, check_block_size},
    kv_write::{kv_write as write, kv_write_int8 as write_int8},
    layer::AttentionLayer,
    paged_attention::paged_attention as attend,
    work_items::Sequences,
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Shape of one layer's cache, given the head size; its blocks may lie apart.
fn cache_shape(cache: &Tensor, head_dim: usize, block_stride: usize) -> PyResult<CacheShape> {
    let [num_blocks, num_kv_heads, _] = cache.dims("cache")?;
    Ok(CacheShape {
        num_blocks,
        num_kv_heads,
        head_dim,
        block_stride,
    })
}

/// A tensor has the shape of another.
fn expect_shape(name: &str, tensor: &Tensor, other_name: &str, other: &Tensor) -> PyResult<()> {
    let (expected, got) = (other.shape(), tensor.shape());
    if got == expected {
        return Ok(());
    }
    let message = format!("{name}: expected the shape of {other_name}, {expected:?}, got {got:?}");
    Err(PyValueError::new_err(message))
}

/// Writes keys and values to one layer's cache.
#[pyfunction]
fn kv_write(
    py: Python<'_>,
    key: Tensor,
    value: Tensor,
    cache: TensorMut,
    slot_mapping: Tensor,
    block_size: usize,
) -> PyResult<()> {
    call(
        py,
        named!(key, value, cache, slot_mapping),
        |(key, ..)| key.numel(),
        move |(key, value, cache, slot_mapping)| {
            check_block_size(block_size)?;
            let [_, _, head_dim] = key.dims()?;
            expect_shape("value", value.tensor(), "key", key.tensor())?;
            with_dtype!(key, |T| {
                let borrows = &mut Borrows::default();
                let key = key.rows::<T>(borrows)?;
                let value = value.rows(borrows)?;
                let slots = slot_mapping.slice(borrows)?;
                if cache.dtype() == Dtype::Int8 {
                    let rows = cache.rows_mut::<i8>(borrows)?;
                    let shape = cache_shape(cache.tensor(), head_dim, rows.stride())?;
                    write_int8(key, value, rows.into_slice(), shape, slots)?;
                } else {
                    let rows = cache.rows_mut::<T>(borrows)?;
                    let shape = cache_shape(cache.tensor(), head_dim, rows.stride())?;
                    write(key, value, rows.into_slice(), shape, slots)?;
                }
                Ok(())
            })
        },
    )
}

/// The rows of a step, and where their blocks are.
type Batch = (Named<Tensor>, Named<Tensor>, Named<Tensor>, Named<Tensor>);

fn sequences<'t>(
    (block_table, rows, query_start_loc, seq_lens): &'t Batch,
    borrows: &mut Borrows,
) -> PyResult<Sequences<'t>> {
    block_table.dims::<2>()?;
    Ok(Sequences {
        block_table: block_table.rows(borrows)?,
        rows: rows.slice(borrows)?,
        query_start_loc: query_start_loc.slice(borrows)?,
        seq_lens: seq_lens.slice(borrows)?,
    })
}

/// Causal attention of a ragged batch over paged keys and values.
#[pyfunction]
#[pyo3(signature = (
    query, cache, block_table, rows, query_start_loc, seq_lens, out, *, scale, block_size, window=None,
    soft_cap=None, sinks=None
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
    out: TensorMut,
    scale: f32,
    block_size: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
    sinks: Option<Tensor>,
) -> PyResult<()> {
    let batch = named!(block_table, rows, query_start_loc, seq_lens);
    let (query, cache, out, sinks) = named!(query, cache, out, sinks);
    call(
        py,
        (query, cache, batch, out, sinks),
        |(query, _, batch, ..)| {
            let width: usize = query.shape().iter().skip(1).product();
            // Lists that are wrong are told by the call itself.
            let sequences = sequences(batch, &mut Borrows::default());
            sequences.map_or(0, |sequences| width.saturating_mul(sequences.num_pairs()))
        },
        move |(query, cache, batch, out, sinks)| {
            check_block_size(block_size)?;
            let [_, _, head_dim] = query.dims()?;
            expect_shape("out", out.tensor(), "query", query.tensor())?;
            with_dtype!(query, |T| {
                let borrows = &mut Borrows::default();
                let query = query.rows::<T>(borrows)?;
                let (view, block_stride) = if cache.dtype() == Dtype::Int8 {
                    let rows = cache.rows(borrows)?;
                    (KvView::Int8(rows.as_slice()), rows.stride())
                } else {
                    let rows = cache.rows::<T>(borrows)?;
                    (KvView::Numbers(rows.as_slice()), rows.stride())
                };
                let layer = AttentionLayer {
                    cache: view,
                    shape: cache_shape(cache.tensor(), head_dim, block_stride)?,
                    scale,
                    window,
                    soft_cap,
                    sinks: sinks.optional_slice(borrows)?,
                };
                let sequences = sequences(batch, borrows)?;
                let out = out.rows_mut(borrows)?;
                Ok(attend(query, &layer, &sequences, out)?)
            })
        },
    )
}

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(kv_write, module)?)?;
    module.add_function(wrap_pyfunction!(paged_attention, module)?)?;
    Ok(())
}
