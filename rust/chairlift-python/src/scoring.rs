//! Log probabilities of tokens that are known, as those of a prompt.

use chairlift_kernels::sampling::score::{self, TokenScores};
use chairlift_tensor::{Borrows, Tensor, TensorMut};
use pyo3::{exceptions::PyArithmeticError, prelude::*};

use crate::{
    kernels::numel,
    recording::{Argument, Call, call},
};

struct Score {
    logits: Tensor,
    tokens: Tensor,
    logprobs: TensorMut,
    ranks: TensorMut,
    candidate_ids: TensorMut,
    candidate_logprobs: TensorMut,
}

impl Call for Score {
    fn work(&self) -> usize {
        numel(&self.logits)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![
            ("logits", &self.logits),
            ("tokens", &self.tokens),
            ("logprobs", &*self.logprobs),
            ("ranks", &*self.ranks),
            ("candidate_ids", &*self.candidate_ids),
            ("candidate_logprobs", &*self.candidate_logprobs),
        ]
    }

    fn run(&self) -> PyResult<()> {
        self.logits.dims::<2>("logits")?;
        let [_, stride] = self.candidate_ids.dims("candidate_ids")?;
        let mut borrows = Borrows::default();
        let logits = borrows.rows::<f32>("logits", &self.logits)?;
        let tokens = borrows.slice("tokens", &self.tokens)?;
        let scores = TokenScores {
            logprobs: borrows.slice_mut("logprobs", &self.logprobs)?,
            ranks: borrows.slice_mut("ranks", &self.ranks)?,
            candidate_ids: borrows.slice_mut("candidate_ids", &self.candidate_ids)?,
            candidate_logprobs: borrows
                .slice_mut("candidate_logprobs", &self.candidate_logprobs)?,
            stride,
        };
        if score::score(logits, tokens, scores)? {
            return Ok(());
        }
        Err(PyArithmeticError::new_err("the logits are not finite"))
    }
}

/// Scores given tokens.
#[pyfunction]
pub(crate) fn score_tokens(
    py: Python<'_>,
    logits: Tensor,
    tokens: Tensor,
    logprobs: TensorMut,
    ranks: TensorMut,
    candidate_ids: TensorMut,
    candidate_logprobs: TensorMut,
) -> PyResult<()> {
    let score = Score {
        logits,
        tokens,
        logprobs,
        ranks,
        candidate_ids,
        candidate_logprobs,
    };
    call(py, score)
}

/// Registers the function of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(score_tokens, module)?)
}
