//! Log probabilities of tokens that are known, as those of a prompt.

use chairlift_kernels::sampling::score::{self, TokenScores};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::{exceptions::PyArithmeticError, prelude::*};

use crate::call::{call, named};

/// Registers the function of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(score_tokens, module)?)
}

/// Scores given tokens.
#[pyfunction]
fn score_tokens(
    py: Python<'_>,
    logits: Tensor,
    tokens: Tensor,
    logprobs: TensorMut,
    ranks: TensorMut,
    candidate_ids: TensorMut,
    candidate_logprobs: TensorMut,
) -> PyResult<()> {
    let inputs = named!(logits, tokens);
    let outputs = named!(logprobs, ranks, candidate_ids, candidate_logprobs);
    call(
        py,
        (inputs, outputs),
        |((logits, _), _)| logits.numel(),
        |((logits, tokens), (logprobs, ranks, candidate_ids, candidate_logprobs))| {
            logits.dims::<2>()?;
            let [_, stride] = candidate_ids.dims()?;
            let borrows = &mut Borrows::default();
            let logits = logits.rows::<f32>(borrows)?;
            let tokens = tokens.slice(borrows)?;
            let scores = TokenScores {
                logprobs: logprobs.slice_mut(borrows)?,
                ranks: ranks.slice_mut(borrows)?,
                candidate_ids: candidate_ids.slice_mut(borrows)?,
                candidate_logprobs: candidate_logprobs.slice_mut(borrows)?,
                stride,
            };
            if score::score(logits, tokens, scores)? {
                return Ok(());
            }
            Err(PyArithmeticError::new_err("the logits are not finite"))
        },
    )
}
