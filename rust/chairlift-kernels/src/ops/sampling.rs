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
//! kept, in order of ids, at a [`uniform`](crate::ops::philox::uniform) number that depends on (seed, index, position) alone.

pub mod bans;
pub mod candidates;
mod draw;
pub mod dry;
pub mod filters;
pub mod history;
pub mod lists;
pub mod penalties;
pub mod score;
pub mod states;

use self::{
    bans::Masks,
    candidates::Candidates,
    draw::{Drawn, Sampler},
    filters::Filters,
    states::States,
};
use crate::{
    error::{ArgumentError, expect_equal},
    isa::dispatch::dispatch,
    memory::{pool, rows::Rows},
};
use std::{
    cell::RefCell,
    sync::{Mutex, PoisonError},
};

/// How to draw for each row, `[S]` each.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// 0 is greedy.
    pub temperature: &'a [f32],
    /// 0 is off.
    pub top_k: &'a [i32],
    /// 1 is off.
    pub top_p: &'a [f32],
    /// 0 is off.
    pub min_p: &'a [f32],
    /// 64 bits.
    pub seed: &'a [i64],
    /// Which of the n answers.
    pub index: &'a [i32],
    /// Of the token that is drawn.
    pub position: &'a [i32],
}

/// The token of a row that has no distribution to draw from.
pub const NOT_FINITE: i32 = -1;

/// The token of a row whose masks and bans leave none to draw from.
pub const NO_TOKEN_LEFT: i32 = -2;

/// The token of a row whose constraint cannot be computed.
pub const TOO_COMPLEX: i32 = -3;

/// What is drawn, `[S]` each.
#[derive(Debug)]
pub struct Draws<'a> {
    /// Token ids; [`NOT_FINITE`] where the row holds NaN or +inf, or nothing but -inf; [`NO_TOKEN_LEFT`] where masks and
    /// bans leave none of what is finite; [`TOO_COMPLEX`] where the mask says so.
    pub tokens: &'a mut [i32],
    /// Log softmax of the raw logits at the token.
    pub logprobs: &'a mut [f32],
    /// Place of the token among the raw logits, from 1; equals share the best.
    pub ranks: &'a mut [i32],
}

/// The sequences of the draws, for those that ask for more than [`Parameters`] have.
#[derive(Debug, Clone, Copy)]
pub struct Sequences<'a> {
    pub states: &'a States,
    /// `[S]`
    pub slots: &'a [i32],
    /// `[S]`: the token before the one that is drawn: the last, or a draft.
    pub last_tokens: &'a [i32],
}

impl Sequences<'_> {
    /// Tells the histories of all sequences their last tokens and drafts: a draw sees the drafts before it.
    fn write_last(&self, positions: &[i32]) -> Result<(), ArgumentError> {
        for (row, &position) in positions.iter().enumerate() {
            let before = usize::try_from(position)
                .ok()
                .and_then(|position| position.checked_sub(1));
            let Some(before) = before else { continue };
            let (slot, token) = (self.slots[row] as usize, self.last_tokens[row]);
            if !self.states.write(slot, before, token) {
                let expected = "one behind the tokens that are known";
                return Err(ArgumentError::new("position", expected, position));
            }
        }
        Ok(())
    }

    /// Tells them what was drawn.
    fn write_drawn(&self, positions: &[i32], draws: &Draws<'_>) {
        self.states.record(self.slots, positions, draws.tokens);
    }
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
    sequences: Option<Sequences<'_>>,
    masks: Option<Masks<'_>>,
    draws: Draws<'_>,
) -> Result<Candidates, ArgumentError> {
    let rows = logits.len();
    check(parameters, rows)?;
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
            state.map_or(0, |state| state.options.num_candidates)
        };
        stride = sequences.slots.iter().map(wanted).max().unwrap_or(0);
    }
    let results = Mutex::new((draws, Candidates::new(rows, stride.min(logits.width()))));
    pool::split(rows, 1, |range| {
        for row in range {
            let drawn = draw_row(logits.row(row), row, parameters, sequences, masks);
            // Held for a few stores, hundreds of microseconds apart.
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
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
    let (draws, candidates) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(sequences) = &sequences {
        sequences.write_drawn(parameters.position, &draws);
    }
    Ok(candidates)
}

/// Why a row gave no token.
fn why_none(raw: &[f32], row: usize, masks: Option<Masks<'_>>) -> i32 {
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
    sequences: Option<Sequences<'_>>,
    masks: Option<Masks<'_>>,
) -> Option<Drawn> {
    if masks.is_some_and(|masks| masks.is_too_complex(row)) {
        return None;
    }
    let mask = masks.and_then(|masks| masks.of(row));
    let state = sequences.and_then(|all| all.states.get(all.slots[row] as usize));
    let filters = state
        .as_ref()
        .map_or_else(Filters::default, |state| state.options.filters);
    let num_candidates = state
        .as_ref()
        .map_or(0, |state| state.options.num_candidates);
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

fn check(parameters: &Parameters<'_>, rows: usize) -> Result<(), ArgumentError> {
    let Parameters {
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        index,
        position,
    } = *parameters;
    for (name, len) in [
        ("temperature", temperature.len()),
        ("top_k", top_k.len()),
        ("top_p", top_p.len()),
        ("min_p", min_p.len()),
        ("seed", seed.len()),
        ("index", index.len()),
        ("position", position.len()),
    ] {
        expect_equal(name, "one per row:", rows, len)?;
    }
    let out_of_range =
        |name, expected: &str, got: f64| Err(ArgumentError::new(name, expected, got));
    for row in 0..rows {
        if !(0.0..f32::INFINITY).contains(&temperature[row]) {
            return out_of_range(
                "temperature",
                "finite and at least 0",
                temperature[row].into(),
            );
        }
        if top_k[row] < 0 {
            return out_of_range("top_k", "at least 0", top_k[row].into());
        }
        if !(top_p[row] > 0.0 && top_p[row] <= 1.0) {
            return out_of_range("top_p", "above 0 and at most 1", top_p[row].into());
        }
        if !(0.0..=1.0).contains(&min_p[row]) {
            return out_of_range("min_p", "0 to 1", min_p[row].into());
        }
    }
    Ok(())
}
