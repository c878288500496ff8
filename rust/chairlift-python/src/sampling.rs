//! Binding of the sampler.

use crate::{
    kernels::numel,
    recording::{Argument, Call, call},
};
use chairlift_kernels::{
    ops::sampling::{self, Draws, Parameters},
    tensor::{Borrows, Tensor, TensorMut},
};
use pyo3::prelude::*;

struct Sample {
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    position: Tensor,
    tokens: TensorMut,
    logprobs: TensorMut,
    ranks: TensorMut,
}

impl Call for Sample {
    fn work(&self) -> usize {
        numel(&self.logits)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![
            ("logits", &self.logits),
            ("temperature", &self.temperature),
            ("top_k", &self.top_k),
            ("top_p", &self.top_p),
            ("min_p", &self.min_p),
            ("seed", &self.seed),
            ("index", &self.index),
            ("position", &self.position),
            ("tokens", &*self.tokens),
            ("logprobs", &*self.logprobs),
            ("ranks", &*self.ranks),
        ]
    }

    fn run(&self) -> PyResult<()> {
        self.logits.dims::<2>("logits")?;
        let mut borrows = Borrows::default();
        let logits = borrows.rows::<f32>("logits", &self.logits)?;
        let parameters = Parameters {
            temperature: borrows.slice("temperature", &self.temperature)?,
            top_k: borrows.slice("top_k", &self.top_k)?,
            top_p: borrows.slice("top_p", &self.top_p)?,
            min_p: borrows.slice("min_p", &self.min_p)?,
            seed: borrows.slice("seed", &self.seed)?,
            index: borrows.slice("index", &self.index)?,
            position: borrows.slice("position", &self.position)?,
        };
        let draws = Draws {
            tokens: borrows.slice_mut("tokens", &self.tokens)?,
            logprobs: borrows.slice_mut("logprobs", &self.logprobs)?,
            ranks: borrows.slice_mut("ranks", &self.ranks)?,
        };
        Ok(sampling::sample(logits, &parameters, draws)?)
    }
}

/// Draws one token per row.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "flat by contract: one crossing per step"
)]
pub(crate) fn sample(
    py: Python<'_>,
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seed: Tensor,
    index: Tensor,
    position: Tensor,
    tokens: TensorMut,
    logprobs: TensorMut,
    ranks: TensorMut,
) -> PyResult<()> {
    let sample = Sample {
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        index,
        position,
        tokens,
        logprobs,
        ranks,
    };
    call(py, sample)
}

/// Registers the functions of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(sample, module)?)?;
    Ok(())
}
