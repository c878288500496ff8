//! Log probabilities of tokens that are given, as those of a prompt are.

use crate::{
    error::{ArgumentError, expect_equal},
    isa::dispatch::dispatch,
    memory::{pool, rows::Rows},
    sampling::draw::Scorer,
};
use parking_lot::Mutex;

/// What the model says of given tokens, `[N]` each; the candidates are `[N, stride]`.
#[derive(Debug)]
pub struct TokenScores<'a> {
    /// Log softmax of the logits at the token.
    pub logprobs: &'a mut [f32],
    /// Place of the token among the logits, from 1; equals share the best.
    pub ranks: &'a mut [i32],
    pub candidate_ids: &'a mut [i32],
    pub candidate_logprobs: &'a mut [f32],
    pub stride: usize,
}

/// Scores the token of each row of `logits` `[N, vocab_size]`. Returns whether all rows are finite: one that holds NaN or +inf,
/// or nothing but -inf, has the log probability -inf and the rank 0.
///
/// # Errors
/// If the arguments do not fit each other, or a token is not in the vocabulary.
///
/// # Panics
/// If scoring another row panicked.
pub fn score(
    logits: Rows<'_, f32>,
    tokens: &[i32],
    scores: TokenScores<'_>,
) -> Result<bool, ArgumentError> {
    let (rows, stride) = (logits.len(), scores.stride);
    expect_equal("tokens", "one per row:", rows, tokens.len())?;
    expect_equal("logprobs", "one per row:", rows, scores.logprobs.len())?;
    expect_equal("ranks", "one per row:", rows, scores.ranks.len())?;
    let candidates = [scores.candidate_ids.len(), scores.candidate_logprobs.len()];
    for len in candidates {
        expect_equal("candidates", "so many per row:", rows * stride, len)?;
    }
    let width = logits.width();
    let is_known = |&token: &i32| usize::try_from(token).is_ok_and(|token| token < width);
    if let Some(&token) = tokens.iter().find(|token| !is_known(token)) {
        let expected = "ids of the vocabulary";
        return Err(ArgumentError::new("tokens", expected, token));
    }
    let results = Mutex::new((scores, true));
    pool::split(rows, 1, |range| {
        for row in range {
            let scored = dispatch(Scorer {
                logits: logits.row(row),
                token: tokens[row] as usize,
                num_candidates: stride.min(width),
            });
            // Held for a few stores, hundreds of microseconds apart.
            let mut results = results.lock();
            let (scores, are_finite) = &mut *results;
            *are_finite &= scored.is_some();
            scores.logprobs[row] = scored.as_ref().map_or(f32::NEG_INFINITY, |it| it.logprob);
            scores.ranks[row] = scored.as_ref().map_or(0, |it| it.rank as i32);
            let line = row * stride..(row + 1) * stride;
            scores.candidate_ids[line.clone()].fill(0);
            scores.candidate_logprobs[line.clone()].fill(f32::NEG_INFINITY);
            let candidates = scored.map(|it| it.candidates).unwrap_or_default();
            for (at, (id, logprob)) in line.zip(candidates) {
                scores.candidate_ids[at] = id as i32;
                scores.candidate_logprobs[at] = logprob;
            }
        }
    });
    let (_, are_finite) = results.into_inner();
    Ok(are_finite)
}
