//! Binding of a mixture of experts: small feed-forward layers, of which each token uses some.

use crate::{
    call::{Named, call, named},
    linear::Linear,
};
use chairlift_kernels::{
    bf16,
    gemm::experts::{self, ExpertActivation},
    ops::{
        clamped_swiglu::ClampedSwiglu,
        route::{Router, RouterScores},
    },
};
use chairlift_tensor::{Borrows, Dtype, Tensor, TensorMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Registers the class of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Experts>()
}

/// Experts with their router; the bits of a row do not depend on the others.
#[pyclass(frozen, module = "chairlift._core")]
struct Experts {
    experts: experts::Experts,
    scores: RouterScores,
    top_k: usize,
    bias: Option<Vec<f32>>,
    min_weight_sum: Option<f32>,
    multiplier: f32,
    factors: Option<Vec<f32>>,
}

#[pymethods]
impl Experts {
    #[new]
    #[pyo3(signature = (
        gate_up, down, *, top_k, scores, activation="silu", bias=None, min_weight_sum=None, multiplier=1.0,
        limit=None, alpha=1.0, gated=true, factors=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "flat by contract")]
    fn new(
        gate_up: Vec<Py<Linear>>,
        down: Vec<Py<Linear>>,
        top_k: usize,
        scores: &str,
        activation: &str,
        bias: Option<Vec<f32>>,
        min_weight_sum: Option<f32>,
        multiplier: f32,
        limit: Option<f32>,
        alpha: f32,
        gated: bool,
        factors: Option<Vec<f32>>,
    ) -> PyResult<Self> {
        let activation = crate::activations::activation(activation)?;
        let middle = match limit {
            Some(_) if !gated => {
                let message = "limit: expected None without a gate, got a number";
                return Err(PyValueError::new_err(message));
            }
            Some(limit) => ExpertActivation::ClampedSwiglu(ClampedSwiglu { limit, alpha }),
            None if gated => ExpertActivation::Gated(activation),
            None => ExpertActivation::Plain(activation),
        };
        let found = RouterScores::ALL
            .into_iter()
            .find(|kind| kind.name() == scores);
        let Some(scores) = found else {
            let known = RouterScores::ALL.map(RouterScores::name).join(", ");
            let message = format!("scores: expected one of {known}, got {scores}");
            return Err(PyValueError::new_err(message));
        };
        let layers =
            |layers: Vec<Py<Linear>>| layers.iter().map(|layer| layer.get().layer()).collect();
        Ok(Self {
            experts: experts::Experts::new(layers(gate_up), layers(down), middle)?,
            scores,
            top_k,
            bias,
            min_weight_sum,
            multiplier,
            factors,
        })
    }

    /// Computes `out` `[T, H]` from `x` `[T, H]` and the router's `logits` float32 `[T, num_experts]`.
    fn forward(
        experts: Py<Self>,
        py: Python<'_>,
        x: Tensor,
        logits: Tensor,
        out: TensorMut,
    ) -> PyResult<()> {
        Self::call(experts, py, Part::All, x, logits, out)
    }

    /// Computes the numbers `out` float32 `[T top_k, part of I]` inside of experts; see `forward`.
    fn inside(
        experts: Py<Self>,
        py: Python<'_>,
        x: Tensor,
        logits: Tensor,
        out: TensorMut,
    ) -> PyResult<()> {
        Self::call(experts, py, Part::Inside, x, logits, out)
    }

    /// Computes `out` `[T, part of H]` from the numbers `x` float32 `[T top_k, I]` that `inside` writes.
    fn outside(
        experts: Py<Self>,
        py: Python<'_>,
        x: Tensor,
        logits: Tensor,
        out: TensorMut,
    ) -> PyResult<()> {
        Self::call(experts, py, Part::Outside, x, logits, out)
    }
}

/// What a call computes.
#[derive(Clone, Copy)]
enum Part {
    All,
    Inside,
    Outside,
}

impl Experts {
    fn call(
        experts: Py<Self>,
        py: Python<'_>,
        part: Part,
        x: Tensor,
        logits: Tensor,
        out: TensorMut,
    ) -> PyResult<()> {
        let (x, logits, out) = named!(x, logits, out);
        call(
            py,
            (experts, x, logits, out),
            |(experts, x, ..)| {
                let Self { experts, top_k, .. } = experts.get();
                let work = x.numel().saturating_mul(3 * experts.inner());
                work.saturating_mul(*top_k)
            },
            move |(experts, x, logits, out)| experts.get().compute(part, x, logits, out),
        )
    }

    fn compute(
        &self,
        part: Part,
        x: &Named<Tensor>,
        logits: &Named<Tensor>,
        out: &Named<TensorMut>,
    ) -> PyResult<()> {
        let router = Router {
            scores: self.scores,
            top_k: self.top_k,
            bias: self.bias.as_deref(),
            min_sum: self.min_weight_sum,
            multiplier: self.multiplier,
            factors: self.factors.as_deref(),
        };
        let borrows = &mut Borrows::default();
        let logits = logits.rows::<f32>(borrows)?;
        macro_rules! run {
            ($method:ident, $In:ty, $Out:ty) => {{
                let (x, out) = (x.rows::<$In>(borrows)?, out.rows_mut::<$Out>(borrows)?);
                self.experts.$method(x, logits, &router, out)?;
            }};
        }
        match (part, x.dtype(), out.dtype()) {
            (Part::All, Dtype::Float32, Dtype::Float32) => run!(forward, f32, f32),
            (Part::All, Dtype::Float32, Dtype::Bfloat16) => run!(forward, f32, bf16),
            (Part::All, Dtype::Bfloat16, Dtype::Float32) => run!(forward, bf16, f32),
            (Part::All, Dtype::Bfloat16, Dtype::Bfloat16) => run!(forward, bf16, bf16),
            (Part::Inside, Dtype::Float32, _) => run!(inside, f32, f32),
            (Part::Inside, Dtype::Bfloat16, _) => run!(inside, bf16, f32),
            (Part::Outside, _, Dtype::Float32) => run!(outside, f32, f32),
            (Part::Outside, _, Dtype::Bfloat16) => run!(outside, f32, bf16),
            (_, Dtype::Float32 | Dtype::Bfloat16, _) => {
                return Err(out.wrong_dtype("float32 or bfloat16"));
            }
            _ => return Err(x.wrong_dtype("float32 or bfloat16")),
        }
        Ok(())
    }
}
