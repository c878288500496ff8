//! Binding of a mixture of experts: small feed-forward layers, of which each token uses some.

use crate::{
    linear::Linear,
    recording::{Argument, Call, call},
};
use chairlift_kernels::{
    Rows, RowsMut, bf16,
    ops::{
        activation::{Activation, activate, activate_mul},
        clamped::Clamped,
        route::{Chosen, Router, Scores, route},
    },
    tensor::{Borrows, Dtype, Tensor, TensorMut},
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Registers the class of this file with the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Experts>()
}

/// What is between both layers of an expert.
#[derive(Clone, Copy)]
enum Middle {
    Gated(Activation),
    Clamped(Clamped),
    /// Without a gate.
    Plain(Activation),
}

impl Middle {
    /// Numbers that it makes one of.
    fn parts(self) -> usize {
        match self {
            Self::Gated(_) | Self::Clamped(_) => 2,
            Self::Plain(_) => 1,
        }
    }
}

/// Experts with their router; the bits of a row do not depend on the others.
#[pyclass(frozen, module = "chairlift._core")]
struct Experts {
    gate_up: Vec<Py<Linear>>,
    down: Vec<Py<Linear>>,
    middle: Middle,
    scores: Scores,
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
        if gate_up.is_empty() || gate_up.len() != down.len() {
            let message = format!(
                "down: expected {} layers, as gate_up, and at least one, got {}",
                gate_up.len(),
                down.len()
            );
            return Err(PyValueError::new_err(message));
        }
        let activation = crate::activations::activation(activation)?;
        let middle = match limit {
            Some(limit) => Middle::Clamped(Clamped { limit, alpha }),
            None if gated => Middle::Gated(activation),
            None => Middle::Plain(activation),
        };
        let (hidden, inner) = (gate_up[0].get().inputs(), down[0].get().inputs());
        let wide = middle.parts() * inner;
        let fits = |(first, second): (&Py<Linear>, &Py<Linear>)| {
            let (first, second) = (first.get(), second.get());
            (first.inputs(), first.outputs()) == (hidden, wide)
                && (second.inputs(), second.outputs()) == (inner, hidden)
        };
        if !gate_up.iter().zip(&down).all(fits) {
            let message = format!(
                "gate_up, down: expected layers from {hidden} to {wide} and from {inner} to {hidden}, got others"
            );
            return Err(PyValueError::new_err(message));
        }
        let found = Scores::ALL.into_iter().find(|kind| kind.name() == scores);
        let Some(scores) = found else {
            let known = Scores::ALL.map(Scores::name).join(", ");
            let message = format!("scores: expected one of {known}, got {scores}");
            return Err(PyValueError::new_err(message));
        };
        Ok(Self {
            gate_up,
            down,
            middle,
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
        let inner = experts.down[0].get().inputs();
        let numbers: usize = self.x.shape().iter().product();
        numbers
            .saturating_mul(3 * inner)
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
        let [num_tokens, _] = self.x.dims("x")?;
        let (rows, num_experts) = {
            let [rows, num_experts] = self.logits.dims("logits")?;
            (rows, num_experts)
        };
        let hidden = experts.gate_up[0].get().inputs();
        for (name, expected, got) in [
            ("x", [num_tokens, hidden], self.x.shape()),
            ("out", [num_tokens, hidden], self.out.shape()),
            (
                "logits",
                [num_tokens, experts.down.len()],
                &[rows, num_experts],
            ),
        ] {
            if got != expected {
                let message = format!("{name}: expected {expected:?}, got {got:?}");
                return Err(PyValueError::new_err(message));
            }
        }
        let mut borrows = Borrows::default();
        let logits = borrows.rows::<f32>("logits", &self.logits)?;
        let chosen = experts.route(logits)?;
        let x = match self.x.dtype() {
            Dtype::Float32 => widened(borrows.rows::<f32>("x", &self.x)?, |x| x),
            Dtype::Bfloat16 => widened(borrows.rows::<bf16>("x", &self.x)?, bf16::to_f32),
            _ => return Err(self.x.wrong_dtype("x", "float32 or bfloat16")),
        };
        let sums = experts.sums(&x, &chosen)?;
        match self.out.dtype() {
            Dtype::Float32 => {
                borrows
                    .slice_mut::<f32>("out", &self.out)?
                    .copy_from_slice(&sums);
            }
            Dtype::Bfloat16 => {
                let out = borrows.slice_mut::<bf16>("out", &self.out)?;
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out = bf16::from_f32(sum);
                }
            }
            _ => return Err(self.out.wrong_dtype("out", "float32 or bfloat16")),
        }
        Ok(())
    }
}

impl Experts {
    fn route(&self, logits: Rows<'_, f32>) -> PyResult<Vec<Chosen>> {
        let router = Router {
            scores: self.scores,
            top_k: self.top_k,
            bias: self.bias.as_deref(),
            least_sum: self.least_sum,
            multiplier: self.multiplier,
            factors: self.factors.as_deref(),
        };
        Ok(route(logits, &router)?)
    }

    /// The weighted sums `[T, H]`; a token adds its experts in their order, whatever other tokens use them.
    fn sums(&self, x: &[f32], chosen: &[Chosen]) -> PyResult<Vec<f32>> {
        let (hidden, inner) = (self.gate_up[0].get().inputs(), self.down[0].get().inputs());
        let mut users: Vec<Vec<(usize, f32)>> = vec![Vec::new(); self.down.len()];
        for (token, chosen) in chosen.iter().enumerate() {
            for &(expert, weight) in chosen {
                users[expert].push((token, weight));
            }
        }
        let mut sums = vec![0.0; x.len()];
        let (mut rows, mut wide, mut narrow, mut out) = (vec![], vec![], vec![], vec![]);
        for (expert, users) in users
            .iter()
            .enumerate()
            .filter(|(_, users)| !users.is_empty())
        {
            rows.clear();
            for &(token, _) in users {
                rows.extend_from_slice(&x[token * hidden..(token + 1) * hidden]);
            }
            let width = self.middle.parts() * inner;
            wide.resize(users.len() * width, 0.0);
            narrow.resize(users.len() * inner, 0.0);
            out.resize(users.len() * hidden, 0.0);
            self.gate_up[expert].get().apply(&rows, &mut wide)?;
            let gate_up = Rows::contiguous(&wide, width);
            match self.middle {
                Middle::Gated(activation) => {
                    activate_mul(activation, gate_up, RowsMut::contiguous(&mut narrow, inner))?;
                }
                Middle::Clamped(clamped) => clamped.activate_mul(gate_up, &mut narrow)?,
                Middle::Plain(activation) => {
                    activate(activation, gate_up, RowsMut::contiguous(&mut narrow, inner))?;
                }
            }
            self.down[expert].get().apply(&narrow, &mut out)?;
            for (&(token, weight), out) in users.iter().zip(out.chunks_exact(hidden)) {
                let sums = &mut sums[token * hidden..(token + 1) * hidden];
                for (sum, number) in sums.iter_mut().zip(out) {
                    *sum += weight * number;
                }
            }
        }
        Ok(sums)
    }
}

/// The numbers of rows, one row after the other.
fn widened<T: Copy>(rows: Rows<'_, T>, wide: impl Fn(T) -> f32) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(rows.len() * rows.width());
    for row in 0..rows.len() {
        numbers.extend(rows.row(row).iter().map(|&number| wide(number)));
    }
    numbers
}
