//! A mixture of experts: small feed-forward layers, of which each token uses some.
//!
//! ```text
//!   tokens by expert            0: a c   2: a b c   5: b        rows that follow each other
//!   gate and up, activation     one job for the layers of all experts: a thread takes panels of several
//!   down                        another
//!   sum of a token              its experts in ascending order, whatever other tokens use them
//! ```

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
use std::{cell::Cell, ops::Range, sync::Arc};

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
    /// Takes the layers of each expert: from H to gate and up, side by side, and from I to H.
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
        let (hidden, inner) = (gate_up[0].in_features(), down[0].in_features());
        if hidden == 0 || inner == 0 {
            let expected = "layers with at least one input and output";
            let got = format_args!("{hidden} and {inner}");
            return Err(ArgumentError::new("gate_up, down", expected, got));
        }
        let wide = activation.parts() * inner;
        let fits = |(first, second): (&Arc<Layer>, &Arc<Layer>)| {
            (first.in_features(), first.out_features()) == (hidden, wide)
                && (second.in_features(), second.out_features()) == (inner, hidden)
        };
        if !gate_up.iter().zip(&down).all(fits) {
            let expected =
                format_args!("layers from {hidden} to {wide} and from {inner} to {hidden}");
            return Err(ArgumentError::new("gate_up, down", expected, "others"));
        }
        Ok(Self {
            gate_up,
            down,
            activation,
        })
    }

    /// Width of the input, and of the output.
    pub fn hidden(&self) -> usize {
        self.gate_up[0].in_features()
    }

    /// Width within an expert.
    pub fn inner(&self) -> usize {
        self.down[0].in_features()
    }

    /// Computes `out` `[T, H]` from `x` `[T, H]` and the `logits` `[T, num_experts]` of the router.
    ///
    /// # Errors
    /// If the shapes do not fit, or the router.
    pub fn forward<T: Element, O: Element>(
        &self,
        x: Rows<'_, T>,
        logits: Rows<'_, f32>,
        router: &Router<'_>,
        out: RowsMut<'_, O>,
    ) -> Result<(), ArgumentError> {
        let (hidden, inner, num_experts) = (self.hidden(), self.inner(), self.down.len());
        for (name, rows, width, expected) in [
            ("x", x.len(), x.width(), hidden),
            ("out", out.len(), out.width(), hidden),
            ("logits", logits.len(), logits.width(), num_experts),
        ] {
            if (rows, width) != (x.len(), expected) {
                let expected = format_args!("[{}, {expected}]", x.len());
                let got = format_args!("[{rows}, {width}]");
                return Err(ArgumentError::new(name, expected, got));
            }
        }
        let tokens_by_expert = TokensByExpert::new(route(logits, router)?, num_experts);
        let (num_rows, wide) = (
            tokens_by_expert.tokens.len(),
            self.activation.parts() * inner,
        );
        let len = num_rows * (wide + inner + hidden);
        let mut numbers = NUMBERS.replace(Aligned::zeroed(0));
        if numbers.len() < len {
            numbers = Aligned::zeroed(len);
        }
        let (wides, rest) = numbers.split_at_mut(num_rows * wide);
        let (narrows, rest) = rest.split_at_mut(num_rows * inner);
        // The inputs, and then the outputs.
        let ends = &mut rest[..num_rows * hidden];
        gather(
            x,
            &tokens_by_expert.tokens,
            RowsMut::contiguous(ends, hidden),
        );
        forward_each(
            &tokens_by_expert.layers(&self.gate_up),
            Rows::contiguous(ends, hidden),
            RowsMut::contiguous(wides, wide),
        );
        self.activation.run(
            Rows::contiguous(wides, wide),
            RowsMut::contiguous(narrows, inner),
        )?;
        forward_each(
            &tokens_by_expert.layers(&self.down),
            Rows::contiguous(narrows, inner),
            RowsMut::contiguous(ends, hidden),
        );
        tokens_by_expert.add(Rows::contiguous(ends, hidden), out);
        NUMBERS.set(numbers);
        Ok(())
    }
}

thread_local! {
    /// The numbers between the layers, kept from call to call: fresh memory would have to be mapped page by page. The
    /// layers have the thread's scratch meanwhile.
    static NUMBERS: Cell<Aligned<f32>> = Cell::new(Aligned::zeroed(0));
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
