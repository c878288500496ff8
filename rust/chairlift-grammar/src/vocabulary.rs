//! The model's tokens as the parser sees them.

use std::sync::Arc;

use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// The bytes of each token, and the tokens that end a text.
#[derive(Clone)]
pub struct Vocabulary {
    env: TokEnv,
    end_ids: Vec<u32>,
}

/// The vocabulary has no token that ends a text: no answer could end where its constraint is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model has no token that ends a text")]
pub struct NoEnd;

impl Vocabulary {
    /// The vocabulary of a model.
    ///
    /// Tokens in `special`, and those that end a text, are no text: a grammar names them `<|name|>`. A token without bytes
    /// is never allowed. Ids in `end_ids` that are outside of the table are ignored.
    ///
    /// # Errors
    /// If no id of `end_ids` is in the table.
    pub fn new(
        tokens: &[Vec<u8>],
        special: impl Fn(usize) -> bool,
        end_ids: &[u32],
    ) -> Result<Self, NoEnd> {
        let known = |&id: &u32| (id as usize) < tokens.len();
        let end_ids: Vec<_> = end_ids.iter().copied().filter(known).collect();
        let &end = end_ids.first().ok_or(NoEnd)?;
        let marked = |(id, bytes): (usize, &Vec<u8>)| {
            let is_end = end_ids.contains(&(id as u32));
            if bytes.is_empty() || !(is_end || special(id)) {
                return bytes.clone();
            }
            [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat()
        };
        let words: Vec<_> = tokens.iter().enumerate().map(marked).collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
        let trie = trie.with_eos_tokens(&end_ids);
        // Any way to write a text in tokens is allowed: the model chooses, and masks do not depend on a tokenizer.
        let env = Arc::new(ApproximateTokEnv::new(trie));
        Ok(Self { env, end_ids })
    }

    pub(crate) fn env(&self) -> &TokEnv {
        &self.env
    }

    /// Width of the logits.
    pub fn size(&self) -> usize {
        self.env.tok_trie().vocab_size()
    }

    /// The tokens that end a text.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Numbers of 32 bits that a mask has.
    pub fn num_words(&self) -> usize {
        self.size().div_ceil(32)
    }
}
