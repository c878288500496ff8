//! Which experts compute a token, and the weight of what each adds.

use crate::{
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
        exp::exp,
    },
    memory::rows::Rows,
};

/// How the logits of a router become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// Softmax over all experts.
    Softmax,
    /// Softmax over the chosen experts alone: the logits choose.
    SoftmaxOfChosen,
    /// The sigmoid of the logit of each expert.
    Sigmoid,
}

impl RouterScores {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Softmax, Self::SoftmaxOfChosen, Self::Sigmoid];

    /// Its name in the Python module.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::SoftmaxOfChosen => "softmax_of_chosen",
            Self::Sigmoid => "sigmoid",
        }
    }
}

/// A router after its linear layer.
#[derive(Clone, Copy, Debug)]
pub struct Router<'a> {
    /// What chooses experts, and weighs them.
    pub scores: RouterScores,
    /// Experts of a token.
    pub top_k: usize,
    /// `[num_experts]`: added to the scores for the choice alone.
    pub bias: Option<&'a [f32]>,
    /// The weights of a token are divided by their sum, which is at least this.
    pub min_sum: Option<f32>,
    /// Factor of all weights.
    pub multiplier: f32,
    /// `[num_experts]`: the factor of the weight of each expert.
    pub factors: Option<&'a [f32]>,
}

/// The experts of one token in their order, each with its weight.
pub type Chosen = Vec<(usize, f32)>;

/// Chooses the experts of each token: those with the largest scores, of equal ones the first.
///
/// Shapes: `logits` `[T, num_experts]`.
///
/// # Errors
/// If there are less than `top_k` experts, or not one bias or factor for each.
pub fn route(logits: Rows<'_, f32>, router: &Router<'_>) -> Result<Vec<Chosen>, ArgumentError> {
    let num_experts = logits.width();
    if router.top_k == 0 || router.top_k > num_experts {
        let expected = format_args!("1 to {num_experts}");
        return Err(ArgumentError::new("top_k", expected, router.top_k));
    }
    if let Some(bias) = router.bias {
        expect_equal("bias", "one per expert:", num_experts, bias.len())?;
    }
    if let Some(factors) = router.factors {
        expect_equal("factors", "one per expert:", num_experts, factors.len())?;
    }
    Ok(dispatch(Route { logits, router }))
}

struct Route<'a> {
    logits: Rows<'a, f32>,
    router: &'a Router<'a>,
}

impl Kernel for Route<'_> {
    type Output = Vec<Chosen>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Vec<Chosen> {
        let mut scores = vec![0.0; self.logits.width()];
        let tokens = 0..self.logits.len();
        tokens
            .map(|token| self.router.choose::<I>(self.logits.row(token), &mut scores))
            .collect()
    }
}

impl Router<'_> {
    /// The experts of one token; `scores` is memory for as many numbers.
    #[inline(always)]
    fn choose<I: Isa>(&self, logits: &[f32], scores: &mut [f32]) -> Chosen {
        match self.scores {
            RouterScores::Softmax => softmax::<I>(logits, scores),
            RouterScores::SoftmaxOfChosen => scores.copy_from_slice(logits),
            RouterScores::Sigmoid => {
                for (score, logit) in scores.iter_mut().zip(logits) {
                    *score = 1.0 / (1.0 + exp::<I>(-logit));
                }
            }
        }
        let mut chosen: Chosen = Vec::with_capacity(self.top_k);
        for _ in 0..self.top_k {
            let mut best: Option<(usize, f32)> = None;
            for (expert, score) in scores.iter().enumerate() {
                let key = score + self.bias.map_or(0.0, |bias| bias[expert]);
                // A score that is no number is the last to be chosen.
                let key = if key.is_nan() { f32::NEG_INFINITY } else { key };
                let is_better = best.is_none_or(|(_, other)| key > other);
                if is_better && chosen.iter().all(|(other, _)| *other != expert) {
                    best = Some((expert, key));
                }
            }
            chosen.extend(best.map(|(expert, _)| (expert, scores[expert])));
        }
        if self.scores == RouterScores::SoftmaxOfChosen {
            let scores: Vec<f32> = chosen.iter().map(|chosen| chosen.1).collect();
            let mut weights = vec![0.0; scores.len()];
            softmax::<I>(&scores, &mut weights);
            for (chosen, weight) in chosen.iter_mut().zip(weights) {
                chosen.1 = weight;
            }
        }
        if let Some(min_sum) = self.min_sum {
            let sum: f32 = chosen.iter().map(|chosen| chosen.1).sum();
            let sum = if sum < min_sum { min_sum } else { sum };
            for chosen in &mut chosen {
                chosen.1 /= sum;
            }
        }
        for chosen in &mut chosen {
            chosen.1 *= self.multiplier * self.factors.map_or(1.0, |factors| factors[chosen.0]);
        }
        // Their order decides in which order a token adds what they compute.
        chosen.sort_by_key(|chosen| chosen.0);
        chosen
    }
}

#[inline(always)]
fn softmax<I: Isa>(logits: &[f32], out: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for (out, logit) in out.iter_mut().zip(logits) {
        *out = exp::<I>(logit - largest);
        sum += *out;
    }
    for out in out {
        *out /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route_one(logits: &[f32], router: &Router<'_>) -> Chosen {
        let rows = Rows::contiguous(logits, logits.len());
        route(rows, router).expect("it fits").remove(0)
    }

    fn router(scores: RouterScores) -> Router<'static> {
        Router {
            scores,
            top_k: 2,
            bias: None,
            min_sum: None,
            multiplier: 1.0,
            factors: None,
        }
    }

    fn assert_near(got: &Chosen, expected: &[(usize, f64)]) {
        assert_eq!(got.len(), expected.len());
        for ((expert, weight), (other, exact)) in got.iter().zip(expected) {
            assert_eq!(expert, other);
            assert!(
                (f64::from(*weight) - exact).abs() < 1e-6,
                "{weight} {exact}"
            );
        }
    }

    #[test]
    fn the_three_routers_weigh_as_they_say() {
        let logits = [0.5, 2.0, -1.0, 1.0];
        let e: Vec<f64> = logits.iter().map(|&x| f64::from(x).exp()).collect();
        let sum: f64 = e.iter().sum();
        let got = route_one(&logits, &router(RouterScores::Softmax));
        assert_near(&got, &[(1, e[1] / sum), (3, e[3] / sum)]);
        let got = route_one(&logits, &router(RouterScores::SoftmaxOfChosen));
        assert_near(
            &got,
            &[(1, e[1] / (e[1] + e[3])), (3, e[3] / (e[1] + e[3]))],
        );
        let got = route_one(&logits, &router(RouterScores::Sigmoid));
        assert_near(&got, &[(1, e[1] / (1.0 + e[1])), (3, e[3] / (1.0 + e[3]))]);
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        let logits = [0.5, 2.0, -1.0, 1.0];
        let bias = [0.0, 0.0, 5.0, 0.0];
        let router = Router {
            bias: Some(&bias),
            min_sum: Some(1e-12),
            multiplier: 2.0,
            ..router(RouterScores::Sigmoid)
        };
        let weights = [2.0_f64, -1.0].map(|x| 1.0 / (1.0 + (-x).exp()));
        let sum: f64 = weights.iter().sum();
        let expected = [(1, 2.0 * weights[0] / sum), (2, 2.0 * weights[1] / sum)];
        assert_near(&route_one(&logits, &router), &expected);
    }

    #[test]
    fn factors_weigh_and_do_not_choose() {
        let logits = [0.5, 2.0, -1.0, 1.0];
        let router = Router {
            factors: Some(&[100.0, 0.5, 100.0, 3.0]),
            min_sum: Some(0.0),
            ..router(RouterScores::Softmax)
        };
        let [one, three] = [2.0_f64, 1.0].map(f64::exp);
        let expected = [
            (1, 0.5 * one / (one + three)),
            (3, 3.0 * three / (one + three)),
        ];
        assert_near(&route_one(&logits, &router), &expected);
    }

    #[test]
    fn of_equal_scores_the_first_are_chosen_and_nan_is_the_last() {
        let got = route_one(
            &[f32::NAN, 1.0, 1.0, 1.0],
            &router(RouterScores::SoftmaxOfChosen),
        );
        assert_near(&got, &[(1, 0.5), (2, 0.5)]);
        let got = route_one(&[f32::NAN, 1.0], &router(RouterScores::SoftmaxOfChosen));
        assert!(got.iter().all(|(_, weight)| weight.is_nan()));
    }

    #[test]
    fn more_experts_than_there_are_is_refused() {
        let logits = [0.0];
        let error = route(Rows::contiguous(&logits, 1), &router(RouterScores::Softmax));
        let message = error.expect_err("wrong").to_string();
        assert_eq!(message, "top_k: expected 1 to 1, got 2");
    }
}
