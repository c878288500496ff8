//! Binding of a mixture of experts: small feed-forward layers, of which each token uses some.

use crate::{
    linear::Linear,
    recording::{Argument, Call, call},
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
    least_sum: Option<f32>,
    multiplier: f32,
    factors: Option<Vec<f32>>,
}

#[pymethods]
impl Experts {
    #[new]
    #[pyo3(signature = (
        gate_up, down, *, top_k, scores, activation="silu", bias=None, least_sum=None, multiplier=1.0,
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
        least_sum: Option<f32>,
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
        let layers = |layers: Vec<Py<Linear>>| layers.iter().map(|own| own.get().layer()).collect();
        Ok(Self {
            experts: experts::Experts::new(layers(gate_up), layers(down), middle)?,
            scores,
            top_k,
            bias,
            least_sum,
            multiplier,
            factors,
        })
    }

    /// Computes `out` `[T, H]` from `x` `[T, H]` and the router's `logits` float32 `[T, num_experts]`.
    fn forward(
        this: Py<Self>,
        py: Python<'_>,
        x: Tensor,
        logits: Tensor,
        out: TensorMut,
    ) -> PyResult<()> {
        call(
            py,
            Forward {
                experts: this,
                x,
                logits,
                out,
            },
        )
    }
}

struct Forward {
    experts: Py<Experts>,
    x: Tensor,
    logits: Tensor,
    out: TensorMut,
}

impl Call for Forward {
    fn work(&self) -> usize {
        let experts = self.experts.get();
        let numbers: usize = self.x.shape().iter().product();
        numbers
            .saturating_mul(3 * experts.experts.inner())
            .saturating_mul(experts.top_k)
    }

    fn tensors(&self) -> Vec<Argument<'_>> {
        vec![
            ("x", &self.x),
            ("logits", &self.logits),
            ("out", &*self.out),
        ]
    }

    fn run(&self) -> PyResult<()> {
        let experts = self.experts.get();
        let Self { x, logits, out, .. } = self;
        let router = Router {
            scores: experts.scores,
            top_k: experts.top_k,
            bias: experts.bias.as_deref(),
            min_sum: experts.least_sum,
            multiplier: experts.multiplier,
            factors: experts.factors.as_deref(),
        };
        let mut borrows = Borrows::default();
        let logits = borrows.rows::<f32>("logits", logits)?;
        macro_rules! forward {
            ($In:ty, $Out:ty) => {{
                let x = borrows.rows::<$In>("x", x)?;
                let out = borrows.rows_mut::<$Out>("out", out)?;
                experts.experts.forward(x, logits, &router, out)?;
            }};
        }
        match (x.dtype(), out.dtype()) {
            (Dtype::Float32, Dtype::Float32) => forward!(f32, f32),
            (Dtype::Float32, Dtype::Bfloat16) => forward!(f32, bf16),
            (Dtype::Bfloat16, Dtype::Float32) => forward!(bf16, f32),
            (Dtype::Bfloat16, Dtype::Bfloat16) => forward!(bf16, bf16),
            (Dtype::Float32 | Dtype::Bfloat16, _) => {
                return Err(out.wrong_dtype("out", "float32 or bfloat16"));
            }
            _ => return Err(x.wrong_dtype("x", "float32 or bfloat16")),
        }
        Ok(())
    }
}
