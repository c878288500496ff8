//! Draws the next token of each row, from logits to a token.
//!
//! The order is fixed, and each part has its file:
//!
//! ```text
//! constraint mask -> allowed and banned ids, bad words, min tokens   bans.rs
//! -> logit bias -> repetition, presence, frequency                   penalties.rs
//! -> DRY                                                             dry.rs
//! -> top-n-sigma                                                     filters.rs
//! -> temperature -> top-k -> typical-p -> top-p -> min-p -> XTC      filters.rs, draw.rs
//! -> draw                                                            draw.rs
//! ```
//!
//! Log probabilities and ranks are those of the logits before all of this. A row without a mask and without options costs
//! nothing but its draw.
//!
//! Tokens are ordered by logit, the largest first, and among equals by id, the lowest first. These filters keep the head of
//! that order:
//!
//! - `top_k` keeps k tokens,
//! - `top_p` keeps, of these, the fewest whose share of their probability reaches p (Holtzman et
//!   al., 2019),
//! - `min_p` keeps those at least p times as likely as the first (Nguyen et al., 2024).
//!
//! Probabilities are those after temperature. A draw inverts the cumulative distribution of what is
//! kept, in order of ids, at a [`uniform`](crate::sampling::philox::uniform) number that depends on (seed, index, position) alone.

pub mod bans;
pub mod candidates;
mod draw;
pub mod dry;
pub mod filters;
pub mod history;
pub mod inputs;
mod order;
pub mod penalties;
pub mod philox;
mod probabilities;
pub mod score;
pub mod states;

use self::{
    candidates::Candidates,
    draw::{Sampled, Sampler},
    filters::Filters,
    inputs::{DrawSequences, MaskLines, Parameters},
};
use crate::{
    error::{ArgumentError, expect_equal},
    isa::dispatch::dispatch,
    memory::{pool, rows::Rows},
};
use chairlift_draws::token::{NO_TOKEN_LEFT, NOT_FINITE, TOO_COMPLEX};
use parking_lot::Mutex;
use std::cell::RefCell;

/// What is drawn, `[S]` each.
#[derive(Debug)]
pub struct Draws<'a> {
    /// Token ids; [`NOT_FINITE`] where the row holds NaN or +inf, or nothing but -inf; [`NO_TOKEN_LEFT`] where masks and
    /// bans leave none of what is finite; [`TOO_COMPLEX`] where the mask says so.
    pub tokens: &'a mut [i32],
    /// Log softmax of the raw logits at the token; 0 where it is not wanted.
    pub logprobs: &'a mut [f32],
    /// Place of the token among the raw logits, from 1; equals share the best. 0 where it is not wanted.
    pub ranks: &'a mut [i32],
}

/// Draws one token per row of `logits` `[S, vocab_size]`; returns the candidates that the sequences ask for.
///
/// # Errors
/// If the arguments do not fit each other, or a parameter is out of range.
///
/// # Panics
/// If drawing for another row panicked.
pub fn sample(
    logits: Rows<'_, f32>,
    parameters: &Parameters<'_>,
    sequences: Option<DrawSequences<'_>>,
    masks: Option<MaskLines<'_>>,
    draws: Draws<'_>,
) -> Result<Candidates, ArgumentError> {
    let rows = logits.len();
    parameters.check(rows)?;
    expect_equal("tokens", "one per row:", rows, draws.tokens.len())?;
    expect_equal("logprobs", "one per row:", rows, draws.logprobs.len())?;
    expect_equal("ranks", "one per row:", rows, draws.ranks.len())?;
    if logits.width() == 0 || logits.width() > i32::MAX as usize {
        let got = logits.width();
        return Err(ArgumentError::new("logits", "1 to 2^31 - 1 columns", got));
    }
    if let Some(masks) = &masks {
        masks.check(rows, logits.width())?;
    }
    let mut stride = 0;
    if let Some(sequences) = &sequences {
        expect_equal("slots", "one per row:", rows, sequences.slots.len())?;
        expect_equal(
            "last_tokens",
            "one per row:",
            rows,
            sequences.last_tokens.len(),
        )?;
        sequences.write_last(parameters.position)?;
        let wanted = |&slot: &i32| {
            let state = sequences.states.get(slot as usize);
            state.map_or(0, |state| state.options().num_candidates)
        };
        stride = sequences.slots.iter().map(wanted).max().unwrap_or(0);
    }
    let results = Mutex::new((draws, Candidates::new(rows, stride.min(logits.width()))));
    pool::split(rows, 1, |range| {
        for row in range {
            let drawn = draw_row(logits.row(row), row, parameters, sequences, masks);
            // Held for a few stores, hundreds of microseconds apart.
            let mut results = results.lock();
            let (draws, candidates) = &mut *results;
            let token = match &drawn {
                Some(drawn) => drawn.token as i32,
                None => why_none(logits.row(row), row, masks),
            };
            let drawn = drawn.unwrap_or_default();
            draws.tokens[row] = token;
            draws.logprobs[row] = drawn.logprob;
            draws.ranks[row] = drawn.rank as i32;
            candidates.put(row, &drawn.candidates);
        }
    });
    let (draws, candidates) = results.into_inner();
    if let Some(sequences) = &sequences {
        sequences
            .states
            .record(sequences.slots, parameters.position, draws.tokens);
    }
    Ok(candidates)
}

/// Why a row gave no token.
fn why_none(raw: &[f32], row: usize, masks: Option<MaskLines<'_>>) -> i32 {
    if masks.is_some_and(|masks| masks.is_too_complex(row)) {
        return TOO_COMPLEX;
    }
    let is_broken = |&logit: &f32| logit.is_nan() || logit == f32::INFINITY;
    let is_finite = |&logit: &f32| logit.is_finite();
    if raw.iter().any(is_broken) || !raw.iter().any(is_finite) {
        return NOT_FINITE;
    }
    NO_TOKEN_LEFT
}

thread_local! {
    /// Logits that masks and options change; the raw ones are needed afterwards.
    static CHANGED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

fn draw_row(
    raw: &[f32],
    row: usize,
    parameters: &Parameters<'_>,
    sequences: Option<DrawSequences<'_>>,
    masks: Option<MaskLines<'_>>,
) -> Option<Sampled> {
    if masks.is_some_and(|masks| masks.is_too_complex(row)) {
        return None;
    }
    let mask = masks.and_then(|masks| masks.of(row));
    let state = sequences.and_then(|all| all.states.get(all.slots[row] as usize));
    let filters = state
        .as_ref()
        .map_or_else(Filters::default, |state| state.options().filters);
    let num_candidates = state
        .as_ref()
        .map_or(0, |state| state.options().num_candidates);
    let position = parameters.position[row] as usize;
    let is_changed = mask.is_some() || state.as_ref().is_some_and(|state| state.changes(position));
    CHANGED.with_borrow_mut(|changed| {
        if is_changed {
            changed.clear();
            changed.extend_from_slice(raw);
            if let Some(mask) = mask {
                bans::mask(changed, mask);
            }
            if let Some(mut state) = state {
                state.apply(changed, position);
            }
        }
        dispatch(Sampler {
            raw,
            changed: is_changed.then_some(changed.as_mut_slice()),
            parameters,
            row,
            filters,
            num_candidates,
        })
    })
}
