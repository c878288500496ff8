//! Binding of the attention of encoders.

use crate::call::{call, named, with_dtype};
use chairlift_kernels::attention::full::{Bidirectional, full_attention as attend};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::prelude::*;

/// Registers the function of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(full_attention, module)?)
}

/// Attention of each token to all tokens of its sequence, before and after it.
#[pyfunction]
#[pyo3(signature = (query, key, value, starts, out, *, num_heads, scale, reach=None, bias=None))]
#[expect(clippy::too_many_arguments, reason = "flat by contract")]
fn full_attention(
    py: Python<'_>,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    out: TensorMut,
    num_heads: usize,
    scale: f32,
    reach: Option<usize>,
    bias: Option<Tensor>,
) -> PyResult<()> {
    call(
        py,
        named!(query, key, value, starts, out, bias),
        // What is read for each token does not depend on the others, what is computed does.
        |(query, ..)| 64 * query.numel(),
        move |(query, key, value, starts, out, bias)| {
            query.dims::<2>()?;
            with_dtype!(query, |T| {
                let borrows = &mut Borrows::default();
                let query = query.rows::<T>(borrows)?;
                let key = key.rows(borrows)?;
                let value = value.rows(borrows)?;
                let starts = starts.slice(borrows)?;
                let layer = Bidirectional {
                    num_heads,
                    scale,
                    reach,
                    bias: bias.optional_rows(borrows)?,
                };
                let out = out.rows_mut(borrows)?;
                Ok(attend(query, key, value, starts, layer, out)?)
            })
        },
    )
}
