//! `attention_work`: the work lists of a step in the caller's buffers.

use chairlift_device::attention_work::{Cut, Rows};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::{exceptions::PyValueError, prelude::*};

/// Cuts the attention of a step for a GPU; returns how much decode work and how many prefill tiles there are, and the
/// most packed rows of a row in the work.
#[pyfunction]
#[pyo3(signature = (rows, query_start_loc, seq_lens, work, tiles, *, num_kv_heads, group, split_len, decode_rows, tile_rows,
    window))]
#[expect(
    clippy::too_many_arguments,
    reason = "keyword arguments of the Python function"
)]
pub(crate) fn attention_work(
    rows: Tensor,
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
) -> PyResult<(usize, usize, usize)> {
    let cut = Cut {
        num_kv_heads,
        group,
        split_len,
        decode_rows,
        tile_rows,
        window,
    };
    let mut borrows = Borrows::default();
    let rows = Rows {
        lines: borrows.slice("rows", &rows)?,
        query_start_loc: borrows.slice("query_start_loc", &query_start_loc)?,
        seq_lens: borrows.slice("seq_lens", &seq_lens)?,
    };
    let pieces = cut.cut(
        rows,
        borrows.slice_mut("work", &work)?,
        borrows.slice_mut("tiles", &tiles)?,
    );
    let pieces = pieces.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((pieces.num_work, pieces.num_tiles, pieces.work_rows))
}
