//! A mixture of experts: small feed-forward layers, of which each token uses some.
//!
//! ```text
//!   tokens by expert            0: a c   2: a b c   5: b        rows that follow each other
//!   gate and up, activation     one job for the layers of all experts: a thread takes panels of several
//!   down                        another
//!   sum of a token              its experts in ascending order, whatever other tokens use them
//! ```
//!
//! Processes that compute a model together have some columns of both layers each: they compute the numbers inside
//! ([`Experts::inside`]), gather them, and compute their columns of the sums ([`Experts::outside`]).

use crate::{
    Element,
    error::ArgumentError,
    gemm::{
        grouped::Widen,
        layer::{Layer, forward_each},
    },
    isa::{
        BLOCK, Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{
        aligned::Aligned,
        rows::{Rows, RowsMut},
    },
    ops::{
        activation::{Activation, activate, activate_mul},
        clamped_swiglu::ClampedSwiglu,
        route::{Chosen, Router, route},
    },
};
use std::{cell::RefCell, ops::Range, sync::Arc};

/// What is between both layers of an expert.
#[derive(Clone, Copy, Debug)]
pub enum ExpertActivation {
    /// An activated gate times an up.
    Gated(Activation),
    /// A clamped gate and a clamped up ([`ClampedSwiglu`]).
    ClampedSwiglu(ClampedSwiglu),
    /// Without a gate.
    Plain(Activation),
}

impl ExpertActivation {
    /// Numbers that it makes one of.
    #[must_use]
    pub fn parts(self) -> usize {
        match self {
            Self::Gated(_) | Self::ClampedSwiglu(_) => 2,
            Self::Plain(_) => 1,
        }
    }

    /// Computes `out` `[T, I]` from `wide` `[T, parts I]`.
    fn run(self, wide: Rows<'_, f32>, out: RowsMut<'_, f32>) -> Result<(), ArgumentError> {
        match self {
            Self::Gated(activation) => activate_mul(activation, wide, out),
            Self::ClampedSwiglu(clamped_swiglu) => clamped_swiglu.activate_mul(wide, out),
            Self::Plain(activation) => activate(activation, wide, out),
        }
    }
}

/// Experts; the bits of a row do not depend on the others.
pub struct Experts {
    gate_up: Vec<Arc<Layer>>,
    down: Vec<Arc<Layer>>,
    activation: ExpertActivation,
}

impl Experts {
    /// Takes the layers of each expert: from H to gate and up, side by side, and from I to H. The first ones may have
    /// some columns of gate and of up, and the second ones some columns of the output.
    ///
    /// # Errors
    /// If the layers do not fit each other.
    pub fn new(
        gate_up: Vec<Arc<Layer>>,
        down: Vec<Arc<Layer>>,
        activation: ExpertActivation,
    ) -> Result<Self, ArgumentError> {
        if gate_up.is_empty() || gate_up.len() != down.len() {
            let expected = format_args!("{} layers, as gate_up, and at least one", gate_up.len());
            return Err(ArgumentError::new("down", expected, down.len()));
        }
        for (name, layers) in [("gate_up", &gate_up), ("down", &down)] {
            let shape = |layer: &Arc<Layer>| (layer.in_features(), layer.out_features());
            let (inputs, outputs) = shape(&layers[0]);
            if inputs == 0 || outputs == 0 {
                let got = format_args!("{inputs} and {outputs}");
                let expected = "layers with at least one input and output";
                return Err(ArgumentError::new(name, expected, got));
            }
            if !layers.iter().all(|layer| shape(layer) == (inputs, outputs)) {
                let expected = format_args!("layers from {inputs} to {outputs}");
                return Err(ArgumentError::new(name, expected, "others"));
            }
        }
        let (wide, parts) = (gate_up[0].out_features(), activation.parts());
        if !wide.is_multiple_of(parts) || wide > parts * down[0].in_features() {
            let expected = format_args!("at most {parts} outputs for each input of down");
            return Err(ArgumentError::new("gate_up", expected, wide));
        }
        Ok(Self {
            gate_up,
            down,
            activation,
        })
    }

    /// Width of the input.
    fn hidden(&self) -> usize {
        self.gate_up[0].in_features()
    }

    /// Width within an expert, as the second layers take it.
    #[must_use]
    pub fn inner(&self) -> usize {
        self.down[0].in_features()
    }

    /// Width within an expert, as the first layers make it.
    fn inner_part(&self) -> usize {
        self.gate_up[0].out_features() / self.activation.parts()
    }

    /// Computes `out` `[T, H]` from `x` `[T, H]` and the `logits` `[T, num_experts]` of the router.
    ///
    /// # Errors
    /// If the shapes do not fit, the router, or if the layers have some columns only.
    pub fn forward<T: Element, O: Element>(
        &self,
        x: Rows<'_, T>,
        logits: Rows<'_, f32>,
        router: &Router<'_>,
        out: RowsMut<'_, O>,
    ) -> Result<(), ArgumentError> {
        let (hidden, inner) = (self.hidden(), self.inner());
        if (self.inner_part(), self.down[0].out_features()) != (inner, hidden) {
            let wide = self.activation.parts() * inner;
            let expected =
                format_args!("layers from {hidden} to {wide} and from {inner} to {hidden}");
            return Err(ArgumentError::new("gate_up, down", expected, "others"));
        }
        check("x", (x.len(), x.width()), (out.len(), hidden))?;
        let by_expert = self.by_expert(x.len(), logits, router)?;
        with_numbers(by_expert.tokens.len() * inner, |narrows| {
            self.first(x, &by_expert, RowsMut::contiguous(narrows, inner))?;
            self.second(Rows::contiguous(narrows, inner), &by_expert, out)
        })
    }

    /// Computes the numbers `out` `[T top_k, part of I]` inside of experts, in an order that depends on `logits` alone.
    ///
    /// # Errors
    /// As of [`Self::forward`].
    pub fn inside<T: Element>(
        &self,
        x: Rows<'_, T>,
        logits: Rows<'_, f32>,
        router: &Router<'_>,
        out: RowsMut<'_, f32>,
    ) -> Result<(), ArgumentError> {
        check("x", (x.len(), x.width()), (logits.len(), self.hidden()))?;
        self.first(x, &self.by_expert(x.len(), logits, router)?, out)
    }

    /// Computes `out` `[T, part of H]` from the numbers `x` `[T top_k, I]` that [`Self::inside`] writes for all columns.
    ///
    /// # Errors
    /// As of [`Self::forward`].
    pub fn outside<O: Element>(
        &self,
        x: Rows<'_, f32>,
        logits: Rows<'_, f32>,
        router: &Router<'_>,
        out: RowsMut<'_, O>,
    ) -> Result<(), ArgumentError> {
        self.second(x, &self.by_expert(out.len(), logits, router)?, out)
    }

    fn by_expert(
        &self,
        num_tokens: usize,
        logits: Rows<'_, f32>,
        router: &Router<'_>,
    ) -> Result<TokensByExpert, ArgumentError> {
        let num_experts = self.down.len();
        let got = (logits.len(), logits.width());
        check("logits", got, (num_tokens, num_experts))?;
        Ok(TokensByExpert::new(route(logits, router)?, num_experts))
    }

    fn first<T: Element>(
        &self,
        x: Rows<'_, T>,
        by_expert: &TokensByExpert,
        out: RowsMut<'_, f32>,
    ) -> Result<(), ArgumentError> {
        let (num_rows, hidden) = (by_expert.tokens.len(), self.hidden());
        let wide = self.gate_up[0].out_features();
        check(
            "out",
            (out.len(), out.width()),
            (num_rows, self.inner_part()),
        )?;
        with_numbers(num_rows * (wide + hidden), |numbers| {
            let (wides, inputs) = numbers.split_at_mut(num_rows * wide);
            gather(x, &by_expert.tokens, RowsMut::contiguous(inputs, hidden));
            forward_each(
                &by_expert.layers(&self.gate_up),
                Rows::contiguous(inputs, hidden),
                RowsMut::contiguous(wides, wide),
            );
            self.activation.run(Rows::contiguous(wides, wide), out)
        })
    }

    fn second<O: Element>(
        &self,
        x: Rows<'_, f32>,
        by_expert: &TokensByExpert,
        out: RowsMut<'_, O>,
    ) -> Result<(), ArgumentError> {
        let (num_rows, outputs) = (by_expert.tokens.len(), self.down[0].out_features());
        check("x", (x.len(), x.width()), (num_rows, self.inner()))?;
        let shape = (by_expert.of_token.len(), outputs);
        check("out", (out.len(), out.width()), shape)?;
        with_numbers(num_rows * outputs, |ends| {
            forward_each(
                &by_expert.layers(&self.down),
                x,
                RowsMut::contiguous(ends, outputs),
            );
            by_expert.add(Rows::contiguous(ends, outputs), out);
            Ok(())
        })
    }
}

fn check(
    name: &'static str,
    got: (usize, usize),
    expected: (usize, usize),
) -> Result<(), ArgumentError> {
    if got == expected {
        return Ok(());
    }
    let expected = format_args!("[{}, {}]", expected.0, expected.1);
    Err(ArgumentError::new(
        name,
        expected,
        format_args!("[{}, {}]", got.0, got.1),
    ))
}

thread_local! {
    /// Memory of the numbers between the layers, kept from call to call: fresh memory would have to be mapped page by
    /// page. The layers have the thread's scratch meanwhile.
    static NUMBERS: RefCell<Vec<Aligned<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with so many numbers of the thread's memory; calls may be nested.
fn with_numbers<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut numbers = NUMBERS
        .with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| Aligned::zeroed(0));
    if numbers.len() < len {
        numbers = Aligned::zeroed(len);
    }
    let result = work(&mut numbers[..len]);
    NUMBERS.with_borrow_mut(|kept| kept.push(numbers));
    result
}

/// The rows that experts compute: those of the first expert that has some, in the order of their tokens, then those
/// of the next.
struct TokensByExpert {
    chosen: Vec<Chosen>,
    /// The token of each row.
    tokens: Vec<usize>,
    /// The rows of each expert.
    rows: Vec<Range<usize>>,
    /// By token, the rows of its experts in ascending order.
    of_token: Vec<Vec<usize>>,
}

impl TokensByExpert {
    fn new(chosen: Vec<Chosen>, num_experts: usize) -> Self {
        let mut rows = vec![0..0; num_experts];
        for &(expert, _) in chosen.iter().flatten() {
            rows[expert].end += 1;
        }
        let mut start = 0;
        for rows in &mut rows {
            let len = rows.end;
            // Empty, to grow below.
            *rows = start..start;
            start += len;
        }
        let mut tokens = vec![0; start];
        let of_token = chosen.iter().enumerate().map(|(token, chosen)| {
            let places = chosen.iter().map(|&(expert, _)| {
                let row = rows[expert].end;
                rows[expert].end += 1;
                tokens[row] = token;
                row
            });
            places.collect()
        });
        let of_token = of_token.collect();
        Self {
            chosen,
            tokens,
            rows,
            of_token,
        }
    }

    /// The layers that have rows, each with these.
    fn layers<'a>(&self, layers: &'a [Arc<Layer>]) -> Vec<(&'a Layer, Range<usize>)> {
        let all = layers.iter().zip(&self.rows);
        all.filter(|(_, rows)| !rows.is_empty())
            .map(|(layer, rows)| (layer.as_ref(), rows.clone()))
            .collect()
    }

    /// Writes the weighted sum of the rows of each token.
    fn add<O: Element>(&self, rows: Rows<'_, f32>, out: RowsMut<'_, O>) {
        out.par_rows(|tokens| {
            for (token, out) in tokens {
                let weights = self.chosen[token].iter().map(|&(_, weight)| weight);
                dispatch(Add {
                    rows,
                    weights: weights.zip(self.of_token[token].iter().copied()).collect(),
                    out,
                });
            }
        });
    }
}

/// Adds rows, each times its weight.
struct Add<'a, O> {
    rows: Rows<'a, f32>,
    weights: Vec<(f32, usize)>,
    out: &'a mut [O],
}

impl<O: Element> Kernel for Add<'_, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (block, out) in self.out.chunks_mut(BLOCK).enumerate() {
            let mut sums = [0.0; BLOCK];
            for &(weight, row) in &self.weights {
                let numbers = &self.rows.row(row)[block * BLOCK..][..out.len()];
                for (sum, number) in sums.iter_mut().zip(numbers) {
                    *sum += weight * number;
                }
            }
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = O::from_f32(sum);
            }
        }
    }
}

/// Widens the rows of some tokens, one row after the other.
fn gather<T: Element>(x: Rows<'_, T>, tokens: &[usize], out: RowsMut<'_, f32>) {
    out.par_rows(|rows| {
        for (row, numbers) in rows {
            dispatch(Widen {
                row: x.row(tokens[row]),
                numbers,
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        gemm::{linear::Linear, panels::Scratch},
        ops::route::RouterScores,
    };

    fn layer(out_features: usize, in_features: usize) -> Arc<Layer> {
        let weight = vec![1.0_f32; out_features * in_features];
        let weight = Rows::contiguous(&weight, in_features);
        Arc::new(Layer::Float32(Linear::new(weight, None).expect("a layer")))
    }

    #[test]
    fn the_layers_keep_the_scratch_of_their_thread() {
        let activation = ExpertActivation::Plain(Activation::Silu);
        let experts = Experts::new(vec![layer(32, 32)], vec![layer(32, 32)], activation);
        let experts = experts.expect("layers that fit");
        let router = Router {
            scores: RouterScores::Softmax,
            top_k: 1,
            bias: None,
            min_sum: None,
            multiplier: 1.0,
            factors: None,
        };
        // Enough for the rows of a layer, and not for all that is between the layers.
        let kept = f32::take_scratch(600);
        let address = kept.as_ptr();
        f32::return_scratch(kept);
        let (x, mut out) = (vec![1.0_f32; 8 * 32], vec![0.0_f32; 8 * 32]);
        let (x, out) = (Rows::contiguous(&x, 32), RowsMut::contiguous(&mut out, 32));
        let logits = Rows::contiguous(&[0.0; 8], 1);
        experts.forward(x, logits, &router, out).expect("it fits");
        assert_eq!(f32::take_scratch(1).as_ptr(), address);
    }
}
