//! What each request must answer, computed without any cache, and the arithmetic that the fake model shares.
//!
//! ```text
//! seen(0)     = root(tenant, salt)
//! kv(p)       = absorb(seen(p), token(p), p)             what the model writes for position p
//! seen(p + 1) = seen(p) + kv(p)                          what position p attends to: a sum over all it reads
//! token(p + 1) = sampled(seen(p + 1))                    where p is the last known token
//! ```
//!
//! A slot holds a hash of everything before it, so a wrong block, a stale hit, a lost, doubled or foreign token
//! changes every later token.

use chairlift_core::{NewRequest, events::EndReason};

use crate::random::mix;

/// The beginning of every chain of a namespace.
pub(crate) fn root(tenant: u8, salt: u8) -> u64 {
    mix(0xC0FF_EE00_0000 + (u64::from(tenant) << 8) + u64::from(salt))
}

/// The content of the KV slot at `position`.
pub(crate) fn absorb(seen: u64, token: i32, position: usize) -> u64 {
    mix(seen ^ ((token as u64) << 32) ^ position as u64)
}

/// The token that follows.
pub(crate) fn sampled(seen: u64, vocab_size: usize) -> i32 {
    (mix(seen) % vocab_size as u64) as i32
}

/// What a token contributes to the text.
pub(crate) fn piece(token: i32) -> String {
    format!("{token} ")
}

/// The answer of one request if nothing cuts it short.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) num_prompt: usize,
    /// Prompt and output; the output goes on to the length limit, past the end by a stop.
    pub(crate) tokens: Vec<i32>,
    /// `seen[p]`: the sum before position `p`; one more than tokens.
    pub(crate) seen: Vec<u64>,
    /// Output tokens up to the end.
    pub(crate) num_output: usize,
    pub(crate) reason: EndReason,
    pub(crate) text: String,
}

impl Answer {
    /// The chain of `prompt` with `limit` more tokens; it ends by its length until [`Answer::stop`] says more.
    pub(crate) fn new(root: u64, prompt: &[i32], limit: usize, vocab_size: usize) -> Self {
        let mut tokens = prompt.to_vec();
        let mut seen = vec![root];
        for position in 0..prompt.len() + limit {
            if position >= prompt.len() {
                tokens.push(sampled(seen[position], vocab_size));
            }
            seen.push(seen[position].wrapping_add(absorb(
                seen[position],
                tokens[position],
                position,
            )));
        }
        Self {
            num_prompt: prompt.len(),
            tokens,
            seen,
            num_output: limit,
            reason: EndReason::Length,
            text: String::new(),
        }
    }

    /// Tokens of the longest possible answer.
    pub(crate) fn limit(&self) -> usize {
        self.tokens.len() - self.num_prompt
    }

    pub(crate) fn output(&self) -> &[i32] {
        &self.tokens[self.num_prompt..]
    }

    /// Finds the end that the request's stop tokens and strings make, and its text.
    pub(crate) fn stop(&mut self, new: &NewRequest) {
        let mut text = String::new();
        let mut end = (self.limit(), EndReason::Length);
        for (i, &token) in self.output().iter().enumerate() {
            let may_stop = i + 1 >= new.min_tokens;
            let piece = piece(token);
            if may_stop && new.stop_token_ids.contains(&token) {
                if new.text.include_stop {
                    text += &piece;
                }
                end = (i + 1, EndReason::StopToken(token));
                break;
            }
            let before = text.len();
            text += &piece;
            if may_stop && let Some((stop, at)) = first_match(&text, before, &new.text.stop) {
                text.truncate(if new.text.include_stop {
                    at + stop.len()
                } else {
                    at
                });
                end = (i + 1, EndReason::StopString(stop.to_owned()));
                break;
            }
        }
        self.text = if new.text.detokenize {
            text
        } else {
            String::new()
        };
        (self.num_output, self.reason) = end;
    }

    /// The text of the first `count` output tokens, none of which ends the answer.
    pub(crate) fn text_of(&self, count: usize) -> String {
        self.output()[..count]
            .iter()
            .map(|&token| piece(token))
            .collect()
    }
}

/// The stop string that ends first after `before`, the longest of those that end together; and where it begins.
fn first_match<'a>(text: &str, before: usize, stops: &'a [String]) -> Option<(&'a str, usize)> {
    (before + 1..=text.len()).find_map(|end| {
        let matching = stops
            .iter()
            .filter(|stop| !stop.is_empty() && text[..end].ends_with(stop.as_str()));
        let longest = matching.max_by_key(|stop| stop.len())?;
        Some((longest.as_str(), end - longest.len()))
    })
}
