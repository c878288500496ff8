//! Where one sequence is in its grammar: a function of its output tokens, whatever was tried before.
//!
//! A draw at position p sees the tokens before p. After a wrong draft, a preemption or a failed step a sequence goes on at an
//! earlier position: the tokens behind are taken back.

use std::{panic::AssertUnwindSafe, sync::Arc};

use llguidance::{TokenParser, api::StopReason, panic_utils};

use crate::{grammar::Grammar, processor_time::Budget};

/// What a mask is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Tokens with a bit may follow; there may be none.
    Mask,
    /// The grammar takes more time or memory at this place than its limits allow.
    TooComplex,
}

/// A sequence of tokens would have a gap: the token before it is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("position: expected one behind the tokens that are known, got {0}")]
pub struct Gap(pub usize);

/// The grammar's state of one sequence.
pub struct Matcher {
    grammar: Arc<Grammar>,
    /// None before the first use, which is on a thread for masks, and after an error.
    parser: Option<Box<TokenParser>>,
    budget: Arc<Budget>,
    num_prompt: usize,
    /// The tokens that the parser has taken: output, then perhaps drafts.
    tokens: Vec<i32>,
    /// Output tokens that were followed.
    num_known: usize,
    /// The most tokens that it has had: each adds to the budget once.
    max_tokens_seen: usize,
    /// A look at the clock is around what runs.
    is_bounded: bool,
    /// An end of the text may be drawn wherever the grammar may end, and not only where it must.
    ends_early: bool,
    has_failed: bool,
}

impl Matcher {
    /// The matcher of a sequence that has its prompt alone.
    pub fn new(grammar: Arc<Grammar>, num_prompt: usize, ends_early: bool) -> Self {
        Self {
            grammar,
            parser: None,
            budget: Budget::new(),
            num_prompt,
            tokens: Vec::new(),
            num_known: 0,
            max_tokens_seen: 0,
            is_bounded: false,
            ends_early,
            has_failed: false,
        }
    }

    /// Shares the processor time of another sequence of the same request, for which more is allowed then.
    pub(crate) fn share_budget(&mut self, other: &Self) {
        self.budget = Arc::clone(&other.budget);
        self.budget.add_sequence();
    }

    /// Sets whether an end may be drawn wherever the grammar may end, and not only where it must.
    pub fn set_ends_early(&mut self, ends_early: bool) {
        self.ends_early = ends_early;
    }

    /// Numbers of 32 bits that a mask has.
    pub fn num_words(&self) -> usize {
        self.grammar.vocabulary().num_words()
    }

    /// Position of the token that follows those that were taken.
    pub fn position(&self) -> usize {
        self.num_prompt + self.tokens.len()
    }

    /// Goes to the state before the token at `position`; `token` is the one before it, and those before that are taken.
    ///
    /// # Errors
    /// If tokens before are missing; nothing has changed then.
    pub fn seek(&mut self, position: usize, token: i32) -> Result<(), Gap> {
        let Some(index) = position.checked_sub(self.num_prompt + 1) else {
            self.truncate(0);
            return Ok(());
        };
        if index > self.tokens.len() {
            return Err(Gap(position));
        }
        if self.tokens.get(index) == Some(&token) {
            self.truncate(index + 1);
        } else {
            self.truncate(index);
            self.take(token);
        }
        Ok(())
    }

    /// Writes the mask of the next token to `mask`, which has [`crate::Vocabulary::num_words`] numbers: bit i % 32 of number
    /// i / 32 says that token i may follow.
    pub fn mask(&mut self, mask: &mut [i32]) -> Outcome {
        mask.fill(0);
        let grammar = Arc::clone(&self.grammar);
        let end_ids = grammar.vocabulary().end_ids();
        let (word, bit) = (|id: u32| id as usize / 32, |id: u32| 1 << (id % 32));
        let has_ended = self.has_ended();
        let allowed = self.with_parser(|parser| {
            if has_ended || parser.stop_reason() != StopReason::NotStopped {
                return Ok(None);
            }
            match parser.compute_mask() {
                Ok(allowed) => Ok(Some(allowed)),
                // No token fits: an empty mask.
                Err(_) if parser.stop_reason() == StopReason::NoExtensionBias => {
                    Ok(Some(parser.token_env.tok_trie().alloc_token_set()))
                }
                Err(error) => Err(error),
            }
        });
        match allowed {
            None => return Outcome::TooComplex,
            Some(Some(allowed)) => {
                for (to, &from) in mask.iter_mut().zip(allowed.as_slice()) {
                    *to = from.cast_signed();
                }
                if !self.ends_early {
                    let kept: Vec<_> = mask.to_vec();
                    for &id in end_ids {
                        mask[word(id)] &= !bit(id);
                    }
                    // Where it must end, it ends.
                    if mask.iter().all(|&word| word == 0) {
                        mask.copy_from_slice(&kept);
                    }
                }
            }
            Some(None) => {
                for &id in end_ids {
                    mask[word(id)] |= bit(id);
                }
            }
        }
        Outcome::Mask
    }

    /// Takes the tokens that a step has added to the output; what was tried in their place is taken back.
    pub fn follow(&mut self, tokens: &[i32]) {
        for &token in tokens {
            self.num_known += 1;
            if self.seek(self.num_prompt + self.num_known, token).is_err() {
                // A step was not followed: nothing is known about the place in the grammar.
                self.fail();
            }
        }
    }

    /// Tokens that are likely to follow, since the grammar leaves only one text: up to `max_tokens`. Another way to write that text in
    /// tokens is allowed too.
    pub fn forced(&mut self, max_tokens: usize) -> Vec<i32> {
        let has_ended = self.has_ended();
        let forced = self.with_parser(|parser| {
            if has_ended || parser.stop_reason() != StopReason::NotStopped {
                return Ok(Vec::new());
            }
            let bytes = parser.force_bytes();
            let env = parser.token_env.clone();
            let trie = env.tok_trie();
            let mut tokens = trie.greedy_tokenize(&bytes);
            // A token at the end of the text may be part of a longer one.
            let chopped = parser
                .parser
                .with_recognizer(|r| trie.chop_tokens(r, &tokens));
            tokens.truncate(tokens.len() - chopped.0);
            Ok(tokens)
        });
        let forced = forced.unwrap_or_default();
        forced
            .into_iter()
            .take(max_tokens)
            .map(|id| id as i32)
            .collect()
    }

    fn truncate(&mut self, len: usize) {
        let excess = self.tokens.len() - len;
        if excess == 0 {
            return;
        }
        let num_text = self.tokens[len..]
            .iter()
            .filter(|&&token| !self.is_end(token));
        let num_text = num_text.count();
        self.tokens.truncate(len);
        self.with_parser(|parser| parser.rollback(num_text));
    }

    fn is_end(&self, token: i32) -> bool {
        let end_ids = self.grammar.vocabulary().end_ids();
        u32::try_from(token).is_ok_and(|id| end_ids.contains(&id))
    }

    /// Whether the last token, perhaps a draft, ends the text.
    fn has_ended(&self) -> bool {
        self.tokens.last().is_some_and(|&token| self.is_end(token))
    }

    fn take(&mut self, token: i32) {
        self.tokens.push(token);
        if self.tokens.len() > self.max_tokens_seen {
            self.max_tokens_seen = self.tokens.len();
            self.budget.add_token();
        }
        // Some grammars take an end and others do not count it: the parser sees the text alone.
        if self.is_end(token) {
            return;
        }
        self.with_parser(|parser| {
            parser.consume_token(token as u32)?;
            parser.check_stop()?;
            Ok(())
        });
    }

    /// Runs several operations under one look at the clock; None if they took too long, and the matcher has failed then.
    pub(crate) fn bounded<T>(&mut self, operations: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.is_bounded {
            return Some(operations(self));
        }
        let budget = Arc::clone(&self.budget);
        if self.parser.is_none() && !self.has_failed {
            let grammar = &self.grammar;
            self.parser = budget.run(None, || Box::new(grammar.parser()));
        }
        let handle = self.parser.as_mut();
        let handle = handle.and_then(|parser| parser.cancellation_handle());
        self.is_bounded = true;
        let result = budget.run(handle, || operations(self));
        self.is_bounded = false;
        if result.is_none() {
            self.fail();
        }
        result
    }

    /// None if this, or something before, went wrong or took too long: the parser's state is then unknown.
    fn with_parser<T>(
        &mut self,
        f: impl FnOnce(&mut TokenParser) -> Result<T, anyhow::Error>,
    ) -> Option<T> {
        let result = self.bounded(|matcher| {
            let parser = matcher.parser.as_mut()?;
            panic_utils::catch_unwind(AssertUnwindSafe(|| f(parser))).ok()
        });
        let result = result.flatten();
        if result.is_none() {
            self.fail();
        }
        result
    }

    fn fail(&mut self) {
        self.has_failed = true;
        self.parser = None;
    }
}
