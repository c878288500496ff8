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

use chairlift_core::{NewRequest, events::EndReason, text::TextOptions};

use crate::{random::mix, text::Groups};

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

/// The answer of one request if nothing cuts it short.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) num_prompt: usize,
    /// Prompt and output; the output goes on to the length limit, past the end by a stop.
    pub(crate) tokens: Vec<i32>,
    /// `seen[p]`: the sum before position `p`; one more than tokens.
    pub(crate) seen: Vec<u64>,
    min_tokens: usize,
    stop_token_ids: Vec<i32>,
    options: TextOptions,
    /// Output tokens up to the end.
    pub(crate) num_output: usize,
    pub(crate) reason: EndReason,
}

impl Answer {
    /// The chain of the prompt with `limit` more tokens; it ends by its length until [`Answer::stop`] says more.
    pub(crate) fn new(root: u64, new: &NewRequest, limit: usize, vocab_size: usize) -> Self {
        let prompt = &new.prompt;
        let mut tokens = prompt.clone();
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
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            options: new.text.clone(),
            num_output: limit,
            reason: EndReason::Length,
        }
    }

    /// Tokens of the longest possible answer.
    pub(crate) fn limit(&self) -> usize {
        self.tokens.len() - self.num_prompt
    }

    pub(crate) fn output(&self) -> &[i32] {
        &self.tokens[self.num_prompt..]
    }

    /// Finds the end that the request's stop tokens and strings make.
    pub(crate) fn stop(&mut self, new: &NewRequest) {
        self.min_tokens = new.min_tokens;
        self.stop_token_ids.clone_from(&new.stop_token_ids);
        self.options = new.text.clone();
        let reading = self.read(self.limit());
        (self.num_output, self.reason) = (reading.num_tokens, reading.reason);
    }

    /// The text of the first `count` output tokens, or of those up to the end.
    pub(crate) fn text(&self, count: usize) -> String {
        if self.options.detokenize {
            self.read(count).text
        } else {
            String::new()
        }
    }

    /// Reads up to `most` output tokens as if the answer were no longer.
    fn read(&self, most: usize) -> Reading {
        let mut groups = Groups::default();
        let (mut num_tokens, mut reason, mut matches) = (most, EndReason::Length, false);
        for (i, &token) in self.output()[..most].iter().enumerate() {
            let may_stop = i + 1 >= self.min_tokens;
            if may_stop && self.stop_token_ids.contains(&token) {
                (num_tokens, reason) = (i + 1, EndReason::StopToken(token));
                if self.options.include_stop {
                    groups.push(token);
                    matches = false;
                }
                break;
            }
            matches = may_stop && !self.options.stop.is_empty();
            let past = if matches { groups.text(false).len() } else { 0 };
            groups.push(token);
            if matches && let Some(reading) = self.cut(groups.text(false), past, i + 1) {
                return reading;
            }
        }
        let text = groups.text(true);
        // The end decides what was open.
        if matches
            && let Some(reading) = self.cut(text.clone(), groups.text(false).len(), num_tokens)
        {
            return reading;
        }
        Reading {
            num_tokens,
            reason,
            text,
        }
    }

    /// What is left of a text if a stop string ends in it after `past`.
    fn cut(&self, mut text: String, past: usize, num_tokens: usize) -> Option<Reading> {
        let (stop, at) = first_match(&text, past, &self.options.stop)?;
        let reason = EndReason::StopString(stop.to_owned());
        let end = if self.options.include_stop {
            at + stop.len()
        } else {
            at
        };
        text.truncate(end);
        Some(Reading {
            num_tokens,
            reason,
            text,
        })
    }
}

/// Output up to its end.
struct Reading {
    num_tokens: usize,
    reason: EndReason,
    text: String,
}

/// The stop string that ends first after `before`, the longest of those that end together; and where it begins.
fn first_match<'a>(text: &str, before: usize, stops: &'a [String]) -> Option<(&'a str, usize)> {
    (before + 1..=text.len()).find_map(|end| {
        let matching = stops
            .iter()
            .filter(|stop| !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes()));
        let longest = matching.max_by_key(|stop| stop.len())?;
        Some((longest.as_str(), end - longest.len()))
    })
}
