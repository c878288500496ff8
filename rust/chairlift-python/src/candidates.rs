//! Bindings of the likeliest tokens of a step.

use chairlift_kernels::sampling::candidates;
use chairlift_tensor::{Borrows, Tensor};
use pyo3::{exceptions::PyValueError, prelude::*};

/// The likeliest tokens of the draws of a step.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct Candidates {
    pub(crate) inner: candidates::Candidates,
}

#[pymethods]
impl Candidates {
    /// Those that a device has found, `[S, stride]` each.
    #[staticmethod]
    fn of_draws(ids: Tensor, logprobs: Tensor) -> PyResult<Self> {
        let [_, stride] = ids.dims("ids")?;
        let mut borrows = Borrows::default();
        let ids = borrows.slice::<i32>("ids", &ids)?.to_vec();
        let logprobs = borrows.slice::<f32>("logprobs", &logprobs)?.to_vec();
        if ids.len() != logprobs.len() {
            let message = format!(
                "logprobs: expected {} like ids, got {}",
                ids.len(),
                logprobs.len()
            );
            return Err(PyValueError::new_err(message));
        }
        let inner = candidates::Candidates {
            stride,
            ids,
            logprobs,
        };
        Ok(Self { inner })
    }

    /// Those of the parts of a step, in order: each with its number of draws. None where no part has any.
    #[staticmethod]
    fn joined(parts: Vec<(Option<PyRef<'_, Self>>, usize)>) -> Option<Self> {
        let strides = parts
            .iter()
            .map(|(part, _)| part.as_ref().map_or(0, |part| part.inner.stride));
        let stride = strides.max().filter(|&stride| stride > 0)?;
        let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
        for (part, num_draws) in &parts {
            for draw in 0..*num_draws {
                let (row_ids, row_logprobs) = part
                    .as_ref()
                    .map_or_else(Default::default, |part| part.of(draw, stride));
                let missing = stride - row_ids.len();
                ids.extend(row_ids.into_iter().chain(std::iter::repeat_n(0, missing)));
                let none = std::iter::repeat_n(f32::NEG_INFINITY, missing);
                logprobs.extend(row_logprobs.into_iter().chain(none));
            }
        }
        let inner = candidates::Candidates {
            stride,
            ids,
            logprobs,
        };
        Some(Self { inner })
    }

    /// Ids and log probabilities of the first `count` candidates of a draw.
    fn of(&self, draw: usize, count: usize) -> (Vec<i32>, Vec<f32>) {
        let stride = self.inner.stride;
        // A draw that there is not has none.
        let start = draw.saturating_mul(stride);
        let range = start..start.saturating_add(count.min(stride));
        let cut = |range: std::ops::Range<usize>| {
            let ids = self.inner.ids.get(range.clone()).unwrap_or_default();
            (
                ids.to_vec(),
                self.inner.logprobs.get(range).unwrap_or_default().to_vec(),
            )
        };
        cut(range)
    }
}
