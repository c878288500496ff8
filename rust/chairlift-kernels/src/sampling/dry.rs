//! DRY: a token that would continue a sequence that occurred before is penalized by the length of that sequence.
//!
//! By p-e-w, as in llama.cpp (`llama_sampler_dry`): a token that followed n tokens which equal the last n tokens of the text
//! loses `multiplier * base^(n - allowed_length)`, for the longest such n. A sequence does not reach over a breaker: a text, which
//! is looked for in the text of the tokens. (llama.cpp looks for the tokens into which a breaker is encoded, and for tokens that
//! begin or hold one.)

use crate::sampling::history::TokenMap;
use std::sync::Arc;

/// The bytes that each token contributes to text.
pub trait TokenText: Send + Sync {
    /// The bytes of a token; none for an id without text.
    fn bytes(&self, id: i32) -> &[u8];
}

/// The parameters of a request.
#[derive(Clone)]
pub struct Dry {
    pub multiplier: f32,
    pub base: f32,
    /// The longest sequence that may be repeated without a penalty.
    pub allowed_length: usize,
    /// So many tokens at the end are looked at.
    pub last_n: usize,
    /// Not empty each.
    pub breakers: Vec<Vec<u8>>,
    pub text: Arc<dyn TokenText>,
}

impl std::fmt::Debug for Dry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dry").finish_non_exhaustive()
    }
}

/// Which tokens of a sequence end with a breaker, as far as is known.
#[derive(Debug, Default)]
pub(super) struct SequenceBreakers(Vec<bool>);

impl SequenceBreakers {
    /// Forgets the tokens from a position on.
    pub(super) fn forget(&mut self, position: usize) {
        self.0.truncate(position);
    }

    /// How many tokens follow the last one in which a breaker ends.
    fn num_after_last(&mut self, dry: &Dry, tokens: &[i32]) -> usize {
        while self.0.len() < tokens.len() {
            let ends = dry.ends_with_breaker(&tokens[..=self.0.len()]);
            self.0.push(ends);
        }
        let known = self.0[..tokens.len()].iter();
        known.rev().take_while(|ends| !**ends).count()
    }
}

impl Dry {
    /// Whether a breaker ends in the last of these tokens.
    fn ends_with_breaker(&self, tokens: &[i32]) -> bool {
        let Some((&last, before)) = tokens.split_last() else {
            return false;
        };
        let last_text = self.text.bytes(last);
        let longest = self.breakers.iter().map(Vec::len).max().unwrap_or(0);
        if last_text.is_empty() || longest == 0 {
            return false;
        }
        let mut text = Vec::with_capacity(longest + last_text.len());
        for &id in before.iter().rev() {
            if text.len() + 1 >= longest {
                break;
            }
            text.extend(self.text.bytes(id).iter().rev());
        }
        text.reverse();
        let start = text.len();
        text.extend_from_slice(last_text);
        let ends_inside = |breaker: &Vec<u8>| {
            let first = (start + 1).saturating_sub(breaker.len());
            let mut windows = text[first..].windows(breaker.len());
            windows.any(|window| window == breaker)
        };
        self.breakers.iter().any(ends_inside)
    }

    /// Whether a token holds a breaker by itself: then it is not penalized.
    fn is_breaker(&self, id: i32) -> bool {
        self.ends_with_breaker(&[id])
    }

    pub(super) fn apply(
        &self,
        logits: &mut [f32],
        tokens: &[i32],
        breakers_seen: &mut SequenceBreakers,
    ) {
        for (id, penalty) in self.penalties(tokens, breakers_seen) {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= penalty;
            }
        }
    }

    /// What is subtracted from the logits of tokens, each of which is there once.
    pub(super) fn penalties(
        &self,
        tokens: &[i32],
        breakers_seen: &mut SequenceBreakers,
    ) -> Vec<(i32, f32)> {
        // llama.cpp's own bound: base^n stays finite.
        const LOG_OF_LARGEST: f32 = 88.722_84;
        let max_length = breakers_seen.num_after_last(self, tokens);
        let tokens = &tokens[tokens.len().saturating_sub(self.last_n)..];
        let max_length = max_length.min(tokens.len());
        if tokens.len() <= self.allowed_length || max_length < self.allowed_length {
            return Vec::new();
        }
        let max_exponent = if self.base > 1.000_001 {
            (LOG_OF_LARGEST / self.base.ln()) as usize
        } else {
            usize::MAX
        };
        let penalty = |length: usize| {
            let exponent = (length - self.allowed_length).min(max_exponent);
            self.multiplier * self.base.powi(exponent.min(i32::MAX as usize) as i32)
        };
        longest_repeats(tokens, self.allowed_length, max_length)
            .into_iter()
            .filter(|&(id, _)| !self.is_breaker(id))
            .map(|(id, length)| (id, penalty(length)))
            .collect()
    }
}

/// Each token that followed at least `min_length` tokens which equal the last ones, and the largest number of these, at most `max_length`.
fn longest_repeats(tokens: &[i32], min_length: usize, max_length: usize) -> TokenMap<usize> {
    let mut longest = TokenMap::default();
    let matches = suffix_matches(tokens);
    // A match of length n that ends k tokens before the end was followed by the token at k.
    for (back, &length) in matches.iter().enumerate().skip(1) {
        let length = length.min(max_length);
        if length >= min_length {
            let next = tokens[tokens.len() - back];
            let entry = longest.entry(next).or_insert(length);
            *entry = length.max(*entry);
        }
    }
    longest
}

/// For each k: how many tokens that end k before the end equal the last ones (the Z function of the reversed tokens).
fn suffix_matches(tokens: &[i32]) -> Vec<usize> {
    let len = tokens.len();
    let back = |i: usize| tokens[len - 1 - i];
    let mut matches = vec![0; len];
    // The match that reaches furthest back: it begins at `left` and ends before `right`.
    let (mut left, mut right) = (0, 0);
    for k in 1..len {
        let mut length = if k < right {
            matches[k - left].min(right - k)
        } else {
            0
        };
        while k + length < len && back(length) == back(k + length) {
            length += 1;
        }
        matches[k] = length;
        if k + length > right {
            (left, right) = (k, k + length);
        }
    }
    matches
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 0 to 25 are letters, 26 is a line break, 27 is "x\n", 28 is "ab".
    struct Letters(Vec<Vec<u8>>);

    impl TokenText for Letters {
        fn bytes(&self, id: i32) -> &[u8] {
            &self.0[id as usize]
        }
    }

    fn dry(breakers: &[&str]) -> Dry {
        let mut tokens: Vec<_> = (b'a'..=b'z').map(|letter| vec![letter]).collect();
        tokens.extend(["\n", "x\n", "ab"].map(|text| text.as_bytes().to_vec()));
        Dry {
            multiplier: 1.0,
            base: 2.0,
            allowed_length: 2,
            last_n: usize::MAX,
            breakers: breakers
                .iter()
                .map(|text| text.as_bytes().to_vec())
                .collect(),
            text: Arc::new(Letters(tokens)),
        }
    }

    fn penalized(dry: &Dry, tokens: &[i32]) -> Vec<(usize, f32)> {
        let mut logits = [0.0; 29];
        dry.apply(&mut logits, tokens, &mut SequenceBreakers::default());
        let penalties = logits.iter().enumerate().filter(|(_, logit)| **logit < 0.0);
        penalties.map(|(id, logit)| (id, -logit)).collect()
    }

    #[test]
    fn the_longest_repeat_sets_the_penalty() {
        // abcd .. bcd -> a? "abc" then d: after "bc" came d, of length 2 and 3.
        assert_eq!(penalized(&dry(&[]), &[0, 1, 2, 3, 9, 0, 1, 2]), [(3, 2.0)]);
        assert_eq!(
            penalized(&dry(&[]), &[1, 2, 4, 0, 1, 2, 3, 9, 0, 1, 2]),
            [(3, 2.0), (4, 1.0)]
        );
        assert_eq!(penalized(&dry(&[]), &[2, 3, 9, 2]), []);
        assert_eq!(penalized(&dry(&[]), &[5, 5, 5, 5]), [(5, 2.0)]);
    }

    #[test]
    fn a_repeat_ends_at_a_breaker() {
        let repeated = [0, 26, 1, 2, 3, 9, 0, 26, 1, 2];
        assert_eq!(penalized(&dry(&[]), &repeated), [(3, 4.0)]);
        assert_eq!(penalized(&dry(&["\n"]), &repeated), [(3, 1.0)]);
        // It ends in the second letter, and may begin in the middle of a token.
        assert_eq!(penalized(&dry(&["ab"]), &[0, 1, 2, 3, 9, 0, 1, 2]), []);
        assert_eq!(penalized(&dry(&["bc"]), &[28, 2, 3, 9, 28, 2]), []);
        assert_eq!(penalized(&dry(&["ac"]), &[28, 2, 3, 9, 28, 2]), [(3, 1.0)]);
    }

    #[test]
    fn a_token_that_holds_a_breaker_is_not_penalized() {
        let repeated = [0, 1, 27, 9, 0, 1];
        assert_eq!(penalized(&dry(&[]), &repeated), [(27, 1.0)]);
        assert_eq!(penalized(&dry(&["\n"]), &repeated), []);
    }

    #[test]
    fn tokens_before_the_last_n_are_not_looked_at() {
        let near = Dry {
            last_n: 5,
            ..dry(&[])
        };
        assert_eq!(penalized(&near, &[0, 1, 2, 9, 0, 1]), []);
        assert_eq!(penalized(&near, &[0, 1, 2, 0, 1]), [(2, 1.0)]);
    }

    #[test]
    fn matches_are_those_of_a_plain_comparison() {
        let mut seed = 7_u32;
        let tokens: Vec<i32> = (0..300)
            .map(|_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (seed >> 30) as i32
            })
            .collect();
        for len in 0..tokens.len() {
            let tokens = &tokens[..len];
            let plain = |k: usize| {
                let pairs = tokens.iter().rev().zip(tokens[..len - k].iter().rev());
                pairs.take_while(|(a, b)| a == b).count()
            };
            let expected: Vec<_> = (1..len).map(plain).collect();
            assert_eq!(
                suffix_matches(tokens).get(1..).unwrap_or_default(),
                expected
            );
        }
    }
}
