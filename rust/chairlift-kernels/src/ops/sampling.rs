//! Draws the next token of each row.
//!
//! Tokens are ordered by logit, the largest first, and among equals by id, the lowest first. Every
//! filter keeps the head of that order:
//!
//! - `top_k` keeps k tokens,
//! - `top_p` keeps, of these, the fewest whose share of their probability reaches p (Holtzman et
//!   al., 2019),
//! - `min_p` keeps those at least p times as likely as the first (Nguyen et al., 2024).
//!
//! Probabilities are those after temperature. A draw inverts the cumulative distribution of what is
//! kept, in order of ids, at a [`uniform`] number that depends on (seed, index, position) alone.

use crate::{
    error::{ArgumentError, expect_equal},
    isa::{
        Isa,
        dispatch::{Kernel, dispatch},
    },
    memory::{pool, rows::Rows},
    ops::{
        philox::uniform,
        probabilities::{
            CHUNK, LANES, LAST_OF_ALL, Last, Weights, in_lanes, key, logit_of, total, weigh,
        },
    },
};
use std::sync::{Mutex, PoisonError};

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

/// What is drawn, `[S]` each.
#[derive(Debug)]
pub struct Draws<'a> {
    /// Token ids; [`NOT_FINITE`] where the row holds NaN or +inf, or nothing but -inf.
    pub tokens: &'a mut [i32],
    /// Log softmax of the raw logits at the token.
    pub logprobs: &'a mut [f32],
    /// Place of the token among the raw logits, from 1; equals share the best.
    pub ranks: &'a mut [i32],
}

/// Draws one token per row of `logits` `[S, vocab_size]`.
///
/// # Errors
/// If the arguments do not fit each other, or a parameter is out of range.
///
/// # Panics
/// If drawing for another row panicked.
pub fn sample(
    logits: Rows<'_, f32>,
    parameters: &Parameters<'_>,
    draws: Draws<'_>,
) -> Result<(), ArgumentError> {
    let rows = logits.len();
    check(parameters, rows)?;
    expect_equal("tokens", "one per row:", rows, draws.tokens.len())?;
    expect_equal("logprobs", "one per row:", rows, draws.logprobs.len())?;
    expect_equal("ranks", "one per row:", rows, draws.ranks.len())?;
    if logits.width() == 0 || logits.width() > i32::MAX as usize {
        let got = logits.width();
        return Err(ArgumentError::new("logits", "1 to 2^31 - 1 columns", got));
    }
    let results = Mutex::new(draws);
    pool::split(rows, 1, |range| {
        for row in range {
            let drawn = dispatch(Sampler {
                logits: logits.row(row),
                parameters,
                row,
            });
            // Held for a few stores, hundreds of microseconds apart.
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            let token = drawn.as_ref().map(|drawn| drawn.token as i32);
            let drawn = drawn.unwrap_or_default();
            results.tokens[row] = token.unwrap_or(NOT_FINITE);
            results.logprobs[row] = drawn.logprob;
            results.ranks[row] = drawn.rank as i32;
        }
    });
    Ok(())
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

#[derive(Debug, Default)]
struct Drawn {
    token: usize,
    logprob: f32,
    rank: usize,
}

struct Sampler<'a> {
    logits: &'a [f32],
    parameters: &'a Parameters<'a>,
    row: usize,
}

impl Kernel for Sampler<'_> {
    type Output = Option<Drawn>;

    #[inline(always)]
    fn run<I: Isa>(self) -> Option<Drawn> {
        let logits = self.logits;
        let largest = largest(logits)?;
        let temperature = self.parameters.temperature[self.row];
        let token = if temperature > 0.0 {
            self.draw::<I>(largest, temperature)
        } else {
            first(logits, largest)
        };
        let chosen = logits[token];
        let better = if chosen < largest {
            num_above(logits, chosen)
        } else {
            0
        };
        Some(Drawn {
            token,
            logprob: (f64::from(chosen - largest) - total::<I>(logits, largest).ln()) as f32,
            rank: 1 + better,
        })
    }
}

/// Where a logit is first.
#[inline(always)]
fn first(logits: &[f32], wanted: f32) -> usize {
    // A search may end anywhere, which is no vector code; whether a chunk has it is.
    for (chunk, numbers) in logits.chunks(CHUNK).enumerate() {
        let mut is_here = false;
        for &logit in numbers {
            is_here |= logit == wanted;
        }
        if is_here {
            let place = numbers.iter().position(|&logit| logit == wanted);
            return chunk * CHUNK + place.unwrap_or_default();
        }
    }
    0
}

#[inline(always)]
fn num_above(logits: &[f32], bound: f32) -> usize {
    let mut count = 0;
    for &logit in logits {
        count += u32::from(logit > bound);
    }
    count as usize
}

/// The largest logit, or None if a logit is NaN or +inf or all are -inf.
#[inline(always)]
fn largest(logits: &[f32]) -> Option<f32> {
    // A maximum per lane: one alone would be a chain of comparisons, each of which waits for the last.
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut is_sound = true;
    for logits in in_lanes(logits) {
        for lane in 0..LANES {
            is_sound &= logits[lane] < f32::INFINITY;
            lanes[lane] = if logits[lane] > lanes[lane] {
                logits[lane]
            } else {
                lanes[lane]
            };
        }
    }
    let largest = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (is_sound && largest > f32::NEG_INFINITY).then_some(largest)
}

impl Sampler<'_> {
    #[inline(always)]
    fn draw<I: Isa>(&self, largest: f32, temperature: f32) -> usize {
        let Parameters {
            top_k,
            top_p,
            min_p,
            seed,
            index,
            position,
            ..
        } = *self.parameters;
        let mut weights = Weights {
            largest,
            temperature,
            floor: 0.0,
            last: LAST_OF_ALL,
        };
        weights.last = self.last_kept::<I>(&weights, top_k[self.row] as usize, top_p[self.row]);
        weights.floor = min_p[self.row];
        let sums = weights.sums::<I>(self.logits);
        let total: f64 = sums.iter().sum();
        let seed = seed[self.row] as u64;
        let mut target = total * uniform(seed, index[self.row] as u32, position[self.row] as u32);
        let mut drawn = 0;
        for (chunk, sum) in sums.iter().enumerate() {
            if *sum == 0.0 {
                continue;
            }
            let start = chunk * CHUNK;
            let end = self.logits.len().min(start + CHUNK);
            if target < *sum || !sums[chunk + 1..].iter().any(|&sum| sum > 0.0) {
                for id in start..end {
                    let weight = f64::from(weights.weight::<I>(self.logits[id], id));
                    if weight > 0.0 {
                        // Rounding may leave the target above the sum: then it is the last kept.
                        drawn = id;
                        if target < weight {
                            break;
                        }
                        target -= weight;
                    }
                }
                break;
            }
            target -= sum;
        }
        drawn
    }

    /// The last token that `top_k` and `top_p` keep.
    #[inline(always)]
    fn last_kept<I: Isa>(&self, weights: &Weights, top_k: usize, top_p: f32) -> Last {
        let has_top_k = 0 < top_k && top_k < self.logits.len();
        if !has_top_k && top_p >= 1.0 {
            return LAST_OF_ALL;
        }
        let mut candidates: Vec<u64>;
        let mut total: f64;
        if has_top_k {
            candidates = self.at_least(self.below_top_k(top_k));
            let (_, &mut last, _) = candidates.select_nth_unstable(top_k - 1);
            if top_p >= 1.0 {
                return (logit_of(last), last as u32 as usize);
            }
            candidates.truncate(top_k);
            candidates.sort_unstable();
            total = 0.0;
            for &key in &candidates {
                total += weigh::<I>(weights, key);
            }
        } else {
            total = weights.sums::<I>(self.logits).iter().sum();
            // All tokens less likely than this have together less than half of what top_p drops.
            let rare = 0.5 * (1.0 - f64::from(top_p)) * total / self.logits.len() as f64;
            let margin = (rare.ln() * f64::from(weights.temperature)) as f32;
            candidates = self.at_least(weights.largest + margin);
            candidates.sort_unstable();
        }
        let enough = f64::from(top_p) * total;
        let mut sum = 0.0;
        for &key in &candidates {
            sum += weigh::<I>(weights, key);
            if sum >= enough {
                return (logit_of(key), key as u32 as usize);
            }
        }
        candidates
            .last()
            .map_or(LAST_OF_ALL, |&key| (logit_of(key), key as u32 as usize))
    }

    /// Keys of the tokens with at least this logit.
    #[inline(always)]
    fn at_least(&self, bound: f32) -> Vec<u64> {
        let mut keys = Vec::new();
        for (id, &logit) in self.logits.iter().enumerate() {
            if logit >= bound {
                keys.push(key(logit, id));
            }
        }
        keys
    }

    /// A logit that at least `top_k` tokens reach, and not many more.
    ///
    /// It is the k-th largest of the maxima of disjoint runs of tokens.
    #[inline(always)]
    fn below_top_k(&self, top_k: usize) -> f32 {
        const RUN: usize = 32;
        let mut maxima = Vec::with_capacity(self.logits.len() / RUN + 1);
        for run in self.logits.chunks(RUN) {
            let mut most = f32::NEG_INFINITY;
            for &logit in run {
                most = if logit > most { logit } else { most };
            }
            maxima.push(key(most, 0));
        }
        if top_k > maxima.len() {
            return f32::NEG_INFINITY;
        }
        let (_, &mut bound, _) = maxima.select_nth_unstable(top_k - 1);
        logit_of(bound)
    }
}
