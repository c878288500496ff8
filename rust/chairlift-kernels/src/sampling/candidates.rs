//! The likeliest tokens beside the one that is drawn, and the scores of given tokens.

use crate::sampling::order::{below_top_k, keys_reaching};

/// Candidates of the draws of a step, `[S, stride]` each; a draw that asks for fewer has the first of a line.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Candidates {
    pub stride: usize,
    pub ids: Vec<i32>,
    pub logprobs: Vec<f32>,
}

impl Candidates {
    pub(super) fn new(num_draws: usize, stride: usize) -> Self {
        Self {
            stride,
            ids: vec![0; num_draws * stride],
            logprobs: vec![f32::NEG_INFINITY; num_draws * stride],
        }
    }

    pub(super) fn put(&mut self, draw: usize, candidates: &[(usize, f32)]) {
        let start = draw * self.stride;
        for (at, &(id, logprob)) in (start..).zip(candidates) {
            self.ids[at] = id as i32;
            self.logprobs[at] = logprob;
        }
    }
}

/// The keys of the first `count` tokens in the order.
#[inline(always)]
pub(super) fn top(logits: &[f32], count: usize) -> Vec<u64> {
    let count = count.min(logits.len());
    if count == 0 {
        return Vec::new();
    }
    let mut keys = keys_reaching(logits, below_top_k(logits, count));
    keys.sort_unstable();
    keys.truncate(count);
    keys
}
