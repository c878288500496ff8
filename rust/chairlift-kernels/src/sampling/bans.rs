//! Which tokens may be drawn at all: constraint masks, allowed and banned ids, bad words, and no end before `min_tokens`.
//!
//! A token that may not be drawn gets the logit -inf.

use crate::isa::{
    Isa,
    dispatch::{Kernel, dispatch},
};

/// Tokens of a bitset's number.
pub const BITS: usize = 32;

/// Bans all tokens without a bit.
struct Mask<'a> {
    logits: &'a mut [f32],
    bits: &'a [i32],
}

impl Kernel for Mask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let banned = I::splat(f32::NEG_INFINITY);
        let (words, rest) = self.logits.as_chunks_mut::<BITS>();
        let num_words = words.len();
        for (logits, &word) in words.iter_mut().zip(self.bits) {
            for (i, logits) in logits.chunks_exact_mut(I::LANES).enumerate() {
                let allowed = word.cast_unsigned() >> (i * I::LANES);
                I::store(I::select_lanes(allowed, I::load(logits), banned), logits);
            }
        }
        if let Some(&word) = self.bits.get(num_words) {
            for (bit, logit) in rest.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }
}

/// Bans all tokens without a bit.
pub(super) fn mask(logits: &mut [f32], bits: &[i32]) {
    dispatch(Mask { logits, bits });
}

/// Bans tokens; ids outside the vocabulary are ignored.
fn ban(logits: &mut [f32], ids: impl IntoIterator<Item = i32>) {
    for id in ids {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// The bans of one request.
#[derive(Debug, Clone, Default)]
pub struct Bans {
    /// A bitset; None allows all.
    allowed: Option<Vec<i32>>,
    banned: Vec<i32>,
    /// Sequences of at least two tokens, of which the last is banned behind the others.
    sequences: Vec<Vec<i32>>,
}

impl Bans {
    /// Allows `allowed` alone (None: all), but not `banned`, nor the last token of a sequence behind its others.
    pub fn new(allowed: Option<&[i32]>, banned: Vec<i32>, sequences: Vec<Vec<i32>>) -> Self {
        let mut bans = Self {
            allowed: allowed.map(bitset),
            banned,
            sequences: Vec::new(),
        };
        for sequence in sequences {
            match sequence[..] {
                [] => {}
                [id] => bans.banned.push(id),
                _ => bans.sequences.push(sequence),
            }
        }
        bans
    }

    /// Whether they ban nothing.
    pub(super) fn are_empty(&self) -> bool {
        self.allowed.is_none() && self.banned.is_empty() && self.sequences.is_empty()
    }

    /// Whether they depend on the tokens so far.
    pub(super) fn need_history(&self) -> bool {
        !self.sequences.is_empty()
    }

    /// Bans what may not follow the tokens so far (`transformers`: `NoBadWordsLogitsProcessor`).
    pub(super) fn apply(&self, logits: &mut [f32], history: &[i32]) {
        if let Some(allowed) = &self.allowed {
            mask(logits, allowed);
            let known = allowed.len() * BITS;
            if logits.len() > known {
                logits[known..].fill(f32::NEG_INFINITY);
            }
        }
        ban(logits, self.banned(history));
    }

    /// A bitset of the allowed tokens; what lies beyond it is not allowed. None allows all.
    pub fn allowed(&self) -> Option<&[i32]> {
        self.allowed.as_deref()
    }

    /// The tokens that may not follow the tokens so far.
    pub fn banned(&self, history: &[i32]) -> impl Iterator<Item = i32> {
        let lasts = self.sequences.iter().filter_map(|sequence| {
            let (&last, others) = sequence.split_last()?;
            history.ends_with(others).then_some(last)
        });
        self.banned.iter().copied().chain(lasts)
    }
}

fn bitset(ids: &[i32]) -> Vec<i32> {
    let max_id = ids.iter().copied().max().unwrap_or(0).max(0) as usize;
    let mut bits = vec![0; max_id / BITS + 1];
    for &id in ids {
        if let Ok(id) = usize::try_from(id) {
            bits[id / BITS] |= 1 << (id % BITS);
        }
    }
    bits
}

/// No end before a position.
#[derive(Debug, Clone, Default)]
pub struct NoEnd {
    /// Tokens that end the answer.
    pub end_ids: Vec<i32>,
    /// They are banned before this position.
    pub before: usize,
}

impl NoEnd {
    /// Bans the ends, unless there is nothing else to draw: a constraint that is complete allows an end alone
    /// (`transformers`: `MinNewTokensLengthLogitsProcessor`).
    pub(super) fn apply(&self, logits: &mut [f32], position: usize) {
        if !self.applies(position) {
            return;
        }
        let is_end = |id: usize| self.end_ids.contains(&(id as i32));
        let mut others = logits.iter().enumerate();
        if others.any(|(id, &logit)| logit > f32::NEG_INFINITY && !is_end(id)) {
            ban(logits, self.end_ids.iter().copied());
        }
    }

    /// Whether the ends are banned at a position.
    pub fn applies(&self, position: usize) -> bool {
        position < self.before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: f32 = f32::NEG_INFINITY;

    #[test]
    fn a_mask_bans_what_has_no_bit() {
        let mut logits = vec![1.0; 70];
        mask(&mut logits, &[1 << 31, -1, 0b10]);
        let allowed: Vec<_> = (0..70).filter(|&id| logits[id] > NONE).collect();
        let expected: Vec<_> = [31].into_iter().chain(32..64).chain([65]).collect();
        assert_eq!(allowed, expected);
    }

    #[test]
    fn only_allowed_tokens_are_left_also_beyond_the_last_word() {
        let bans = Bans::new(Some(&[1, 33]), vec![33], vec![]);
        let mut logits = vec![0.0; 100];
        bans.apply(&mut logits, &[]);
        let allowed: Vec<_> = (0..100).filter(|&id| logits[id] > NONE).collect();
        assert_eq!(allowed, [1]);
    }

    #[test]
    fn a_sequence_bans_its_last_token_behind_the_others_alone() {
        let bans = Bans::new(None, vec![], vec![vec![4], vec![1, 2, 3], vec![]]);
        assert!(bans.need_history());
        for (history, banned) in [(&[0, 1, 2][..], true), (&[1, 1], false), (&[2], false)] {
            let mut logits = [0.0; 5];
            bans.apply(&mut logits, history);
            assert_eq!(
                logits,
                [0.0, 0.0, 0.0, if banned { NONE } else { 0.0 }, NONE]
            );
        }
    }

    #[test]
    fn ends_are_banned_before_a_position_unless_they_alone_are_left() {
        let no_end = NoEnd {
            end_ids: vec![0, 2],
            before: 5,
        };
        let mut logits = [0.0; 3];
        no_end.apply(&mut logits, 5);
        assert_eq!(logits, [0.0; 3]);
        no_end.apply(&mut logits, 4);
        assert_eq!(logits, [NONE, 0.0, NONE]);
        let mut ends_alone = [0.0, NONE, NONE];
        no_end.apply(&mut ends_alone, 4);
        assert_eq!(ends_alone, [0.0, NONE, NONE]);
    }
}
