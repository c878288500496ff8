//! Binding of the attention of encoders.

use crate::{
    kernels::{numel, with_dtype},
    recording::{Argument, Call, call},
};
use chairlift_kernels::{
    attention::full::{Bidirectional, full_attention as attend},
    bf16,
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorMut};
use pyo3::prelude::*;

/// Registers the function of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(full_attention, module)?)
}

struct FullAttention {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    out: TensorMut,
    num_heads: usize,
    scale: f32,
    reach: Option<usize>,
    bias: Option<Tensor>,
}

impl Call for FullAttention {
    fn work(&self) -> usize {
        // What is read for each token does not depend on the others, what is computed does.
        64 * numel(&self.query)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        let tensors = [
            ("query", &self.query),
            ("key", &self.key),
            ("value", &self.value),
            ("starts", &self.starts),
            ("out", &*self.out),
        ];
        let bias = self.bias.as_ref().map(|bias| ("bias", bias));
        tensors.into_iter().chain(bias).collect()
    }

    fn run(&self) -> PyResult<()> {
        self.query.dims::<2>("query")?;
        with_dtype!(self.query, "query", |T| {
            let mut borrows = Borrows::default();
            let query = borrows.rows::<T>("query", &self.query)?;
            let key = borrows.rows::<T>("key", &self.key)?;
            let value = borrows.rows::<T>("value", &self.value)?;
            let starts = borrows.slice::<i32>("starts", &self.starts)?;
            let bias = match &self.bias {
                Some(bias) => Some(borrows.rows::<f32>("bias", bias)?),
                None => None,
            };
            let out = borrows.rows_mut::<T>("out", &self.out)?;
            let layer = Bidirectional {
                num_heads: self.num_heads,
                scale: self.scale,
                reach: self.reach,
                bias,
            };
            Ok(attend(query, key, value, starts, layer, out)?)
        })
    }
}

/// Attention of each token to all tokens of its sequence, before and after it.
#[pyfunction]
#[pyo3(signature = (query, key, value, starts, out, *, num_heads, scale, reach=None, bias=None))]
#[allow(clippy::too_many_arguments, reason = "named in Python")]
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
    let attention = FullAttention {
        query,
        key,
        value,
        starts,
        out,
        num_heads,
        scale,
        reach,
        bias,
    };
    call(py, attention)
}
