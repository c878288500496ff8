//! Output of sequences that is kept in the core, and the scores that a step has for it.

use crate::error::StepError;

/// What a step says about its sample slots, for sequences whose output is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampleScores<'a> {
    /// `[S]`, or none.
    pub logprobs: &'a [f32],
    /// `[S]`, or none.
    pub ranks: &'a [i32],
    /// Candidates of each slot.
    pub stride: usize,
    /// `[S, stride]`
    pub candidate_ids: &'a [i32],
    /// `[S, stride]`
    pub candidate_logprobs: &'a [f32],
}

impl SampleScores<'_> {
    /// Checks the lists against the number of sample slots; one without entries is not there.
    pub(crate) fn check(&self, num_samples: usize) -> Result<(), StepError> {
        let num_candidates = num_samples.saturating_mul(self.stride);
        for (name, got, expected, may_be_absent) in [
            ("logprobs", self.logprobs.len(), num_samples, true),
            ("ranks", self.ranks.len(), num_samples, true),
            (
                "candidate_ids",
                self.candidate_ids.len(),
                num_candidates,
                false,
            ),
            (
                "candidate_logprobs",
                self.candidate_logprobs.len(),
                num_candidates,
                false,
            ),
        ] {
            if got != expected && !(may_be_absent && got == 0) {
                return Err(StepError::WrongScores {
                    name,
                    expected,
                    got,
                });
            }
        }
        Ok(())
    }
}

/// Output of a sequence that is not sent yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    pub text: String,
    pub tokens: Vec<i32>,
    pub logprobs: Vec<f32>,
    pub ranks: Vec<i32>,
    /// Candidates of each token; the most that a step reported.
    pub stride: usize,
    pub candidate_ids: Vec<i32>,
    pub candidate_logprobs: Vec<f32>,
    pub(crate) total: f64,
}

impl Kept {
    /// Appends tokens, whose sample slots begin at `slot`, with at most `most` candidates each.
    pub(crate) fn add(
        &mut self,
        tokens: &[i32],
        scores: SampleScores<'_>,
        slot: usize,
        most: usize,
    ) {
        let slots = slot..slot + tokens.len();
        let logprobs = scores.logprobs.get(slots.clone()).unwrap_or_default();
        self.total += logprobs.iter().copied().map(f64::from).sum::<f64>();
        self.tokens.extend_from_slice(tokens);
        self.logprobs.extend_from_slice(logprobs);
        let ranks = scores.ranks.get(slots.clone());
        self.ranks.extend_from_slice(ranks.unwrap_or_default());
        self.stride = most;
        if most == 0 {
            return;
        }
        for slot in slots {
            for i in 0..most {
                let at = slot * scores.stride + i;
                let (id, logprob) = if i < scores.stride {
                    (scores.candidate_ids[at], scores.candidate_logprobs[at])
                } else {
                    (0, f32::NEG_INFINITY)
                };
                self.candidate_ids.push(id);
                self.candidate_logprobs.push(logprob);
            }
        }
    }
}
