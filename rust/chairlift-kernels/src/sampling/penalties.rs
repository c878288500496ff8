//! Penalties of tokens that occurred before, and the bias of a request.

use crate::sampling::history::{Count, TokenMap};

/// How much less likely tokens become that occurred before.
#[derive(Debug, Clone, Copy)]
pub struct Penalties {
    /// Divides positive logits and multiplies others, of tokens in prompt or output; 1 is off (Keskar et al., 2019, as in
    /// `transformers`: `RepetitionPenaltyLogitsProcessor`).
    pub repetition: f32,
    /// Subtracted for each token of the output; 0 is off (as in vLLM).
    pub presence: f32,
    /// Subtracted as often as the token is in the output; 0 is off (as in vLLM).
    pub frequency: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self {
            repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
        }
    }
}

#[expect(clippy::float_cmp, reason = "off is exactly this")]
impl Penalties {
    /// Whether they change nothing.
    pub fn are_off(&self) -> bool {
        self.repetition == 1.0 && self.presence == 0.0 && self.frequency == 0.0
    }

    /// Repetition first, then the others, as in vLLM.
    pub(super) fn apply(&self, logits: &mut [f32], counts: &TokenMap<Count>) {
        for (&id, &Count { all, output }) in counts {
            let Some(logit) = logits.get_mut(id as usize).filter(|_| all > 0) else {
                continue;
            };
            if *logit > 0.0 {
                *logit /= self.repetition;
            } else {
                *logit *= self.repetition;
            }
            if output > 0 {
                *logit -= self.frequency * output as f32;
                *logit -= self.presence;
            }
        }
    }
}

/// Adds to the logits of some tokens; ids outside the vocabulary are ignored.
pub(super) fn bias(logits: &mut [f32], biases: &[(i32, f32)]) {
    for &(id, bias) in biases {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit += bias;
        }
    }
}
