//! `attention_work`: the work lists of a step in the caller's buffers.

use chairlift_device::attention_work::Cut;
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::{exceptions::PyValueError, prelude::*};

/// Cuts the attention of a step for a GPU; returns how much decode work and how many prefill tiles there are.
#[pyfunction]
#[pyo3(signature = (query_start_loc, seq_lens, work, tiles, *, num_kv_heads, group, split_len, decode_rows, tile_rows,
    window))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub(crate) fn attention_work(
    query_start_loc: Tensor,
    seq_lens: Tensor,
    work: TensorMut,
    tiles: TensorMut,
    num_kv_heads: usize,
    group: usize,
    split_len: usize,
    decode_rows: usize,
    tile_rows: usize,
    window: usize,
) -> PyResult<(usize, usize)> {
    let cut = Cut {
        num_kv_heads,
        group,
        split_len,
        decode_rows,
        tile_rows,
        window,
    };
    let mut borrows = Borrows::default();
    let pieces = cut.cut(
        borrows.slice("query_start_loc", &query_start_loc)?,
        borrows.slice("seq_lens", &seq_lens)?,
        borrows.slice_mut("work", &work)?,
        borrows.slice_mut("tiles", &tiles)?,
    );
    let pieces = pieces.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((pieces.num_work, pieces.num_tiles))
}
