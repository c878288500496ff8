//! Bindings of attention and of the write to the cache that it reads.

use crate::{
    kernels::{numel, optional, with_dtype},
    recording::{Argument, Call, call},
};
use chairlift_kernels::{
    attention::{
        kv_format::KvView,
        kv_layout::{CacheShape, check_block_size},
        kv_write::{kv_write as write, kv_write_int8 as write_int8},
        layer::AttentionLayer,
        work_items::Sequences,
    },
    bf16,
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

struct KvWrite {
    key: Tensor,
    value: Tensor,
    cache: TensorMut,
    slot_mapping: Tensor,
    block_size: usize,
}

impl Call for KvWrite {
    fn work(&self) -> usize {
        numel(&self.key)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![
            ("key", &self.key),
            ("value", &self.value),
            ("cache", &*self.cache),
            ("slot_mapping", &self.slot_mapping),
        ]
    }

    fn run(&self) -> PyResult<()> {
        check_block_size(self.block_size)?;
        let [_, _, head_dim] = self.key.dims("key")?;
        expect_shape("value", &self.value, "key", &self.key)?;
        with_dtype!(self.key, "key", |T| {
            let mut borrows = Borrows::default();
            let key = borrows.rows::<T>("key", &self.key)?;
            let value = borrows.rows::<T>("value", &self.value)?;
            let slots = borrows.slice::<i32>("slot_mapping", &self.slot_mapping)?;
            if self.cache.dtype() == Dtype::Int8 {
                let cache = borrows.rows_mut::<i8>("cache", &self.cache)?;
                let shape = cache_shape(&self.cache, head_dim, cache.stride())?;
                write_int8(key, value, cache.into_slice(), shape, slots)?;
            } else {
                let cache = borrows.rows_mut::<T>("cache", &self.cache)?;
                let shape = cache_shape(&self.cache, head_dim, cache.stride())?;
                write(key, value, cache.into_slice(), shape, slots)?;
            }
            Ok(())
        })
    }
}

/// Writes keys and values to one layer's cache.
#[pyfunction]
pub(crate) fn kv_write(
    py: Python<'_>,
    key: Tensor,
    value: Tensor,
    cache: TensorMut,
    slot_mapping: Tensor,
    block_size: usize,
) -> PyResult<()> {
    call(
        py,
        KvWrite {
            key,
            value,
            cache,
            slot_mapping,
            block_size,
        },
    )
}

struct PagedAttention {
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
}

impl PagedAttention {
    fn sequences<'t>(&'t self, borrows: &mut Borrows) -> PyResult<Sequences<'t>> {
        self.block_table.dims::<2>("block_table")?;
        Ok(Sequences {
            block_table: borrows.rows::<i32>("block_table", &self.block_table)?,
            rows: borrows.slice::<i32>("rows", &self.rows)?,
            query_start_loc: borrows.slice::<i32>("query_start_loc", &self.query_start_loc)?,
            seq_lens: borrows.slice::<i32>("seq_lens", &self.seq_lens)?,
        })
    }
}

impl Call for PagedAttention {
    fn work(&self) -> usize {
        let width: usize = self.query.shape().iter().skip(1).product();
        // Lists that are wrong are told by `run`.
        let sequences = self.sequences(&mut Borrows::default());
        sequences.map_or(0, |sequences| width.saturating_mul(sequences.num_pairs()))
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        [
            ("query", &self.query),
            ("cache", &self.cache),
            ("block_table", &self.block_table),
            ("rows", &self.rows),
            ("query_start_loc", &self.query_start_loc),
            ("seq_lens", &self.seq_lens),
            ("out", &*self.out),
        ]
        .into_iter()
        .chain(self.sinks.as_ref().map(|sinks| ("sinks", sinks)))
        .collect()
    }

    fn run(&self) -> PyResult<()> {
        check_block_size(self.block_size)?;
        let [_, _, head_dim] = self.query.dims("query")?;
        expect_shape("out", &self.out, "query", &self.query)?;
        with_dtype!(self.query, "query", |T| {
            let mut borrows = Borrows::default();
            let query = borrows.rows::<T>("query", &self.query)?;
            let (cache, block_stride) = if self.cache.dtype() == Dtype::Int8 {
                let cache = borrows.rows("cache", &self.cache)?;
                (KvView::Int8(cache.as_slice()), cache.stride())
            } else {
                let cache = borrows.rows::<T>("cache", &self.cache)?;
                (KvView::Numbers(cache.as_slice()), cache.stride())
            };
            let layer = AttentionLayer {
                cache,
                shape: cache_shape(&self.cache, head_dim, block_stride)?,
                scale: self.scale,
                window: self.window,
                soft_cap: self.soft_cap,
                sinks: optional::<f32>(&mut borrows, "sinks", self.sinks.as_ref())?,
            };
            let sequences = self.sequences(&mut borrows)?;
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            chairlift_kernels::attention::paged_attention::paged_attention(
                query, &layer, &sequences, out,
            )?;
            Ok(())
        })
    }
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
pub(crate) fn paged_attention(
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
    let attention = PagedAttention {
        query,
        cache,
        block_table,
        rows,
        query_start_loc,
        seq_lens,
        out,
        scale,
        block_size,
        window,
        soft_cap,
        sinks,
    };
    call(py, attention)
}

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(kv_write, module)?)?;
    module.add_function(wrap_pyfunction!(paged_attention, module)?)?;
    Ok(())
}
