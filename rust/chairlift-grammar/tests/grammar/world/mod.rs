//! A vocabulary of bytes and some longer tokens, and random walks over masks.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::{Arc, OnceLock};

use chairlift_grammar::{Compiler, Grammar, Matcher, Source, Vocabulary, matcher::Outcome};

pub(crate) const END: i32 = 0;
pub(crate) const FIRST_BYTE: i32 = 2;

const LONGER: &[&str] = &[
    "true", "false", "null", "{\"", "\":", "\": ", "\",", ", \"", "\"}", "[]", "{}", "name", "nam",
    "12", "00", "  ", "\n  ", "\": \"", "yes", "no", "maybe", "é", "日本",
];

pub(crate) fn tokens() -> Vec<Vec<u8>> {
    let mut tokens = vec![b"<|end|>".to_vec(), b"<|tool|>".to_vec()];
    tokens.extend((0..=255).map(|byte| vec![byte]));
    tokens.extend(LONGER.iter().map(|text| text.as_bytes().to_vec()));
    // Ids that the tokenizer does not have.
    tokens.extend([Vec::new(), Vec::new()]);
    tokens
}

pub(crate) fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let vocabulary = Vocabulary::new(&tokens(), |id| id == 1, &[END as u32]).expect("an end");
        Compiler::new(vocabulary, chairlift_grammar::grammar::STACK_BYTES).expect("a vocabulary")
    })
}

pub(crate) fn num_words() -> usize {
    compiler().vocabulary().num_words()
}

pub(crate) fn schema(text: &str) -> Arc<Grammar> {
    compile(&Source::JsonSchema(text.into()))
}

pub(crate) fn compile(source: &Source) -> Arc<Grammar> {
    Arc::new(compiler().compile(source).expect("a grammar"))
}

pub(crate) fn mask(matcher: &mut Matcher) -> Vec<i32> {
    let mut mask = vec![0; num_words()];
    assert_eq!(matcher.mask(&mut mask), Outcome::Mask);
    mask
}

pub(crate) fn allowed(mask: &[i32]) -> Vec<i32> {
    let has = |&id: &i32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
    (0..tokens().len() as i32).filter(has).collect()
}

/// The mask behind some output tokens, by a matcher that has seen nothing else.
pub(crate) fn mask_behind(grammar: &Arc<Grammar>, output: &[i32]) -> Vec<i32> {
    let mut matcher = Matcher::new(Arc::clone(grammar), 3, true);
    matcher.follow(output);
    mask(&mut matcher)
}

pub(crate) fn text(output: &[i32]) -> String {
    let tokens = tokens();
    let output = output.iter().filter(|&&id| id > 1);
    let bytes: Vec<u8> = output.flat_map(|&id| tokens[id as usize].clone()).collect();
    String::from_utf8(bytes).expect("masks allow text alone")
}

/// A small generator: tests need the same walks everywhere.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Tokens drawn from masks, up to the end; None if there is no end within `max_tokens`.
pub(crate) fn walk(
    grammar: &Arc<Grammar>,
    random: &mut Random,
    max_tokens: usize,
) -> Option<Vec<i32>> {
    let mut matcher = Matcher::new(Arc::clone(grammar), 3, true);
    let mut output = Vec::new();
    while output.len() < max_tokens {
        let allowed = allowed(&mask(&mut matcher));
        let token = allowed[random.below(allowed.len())];
        if token == END {
            return Some(output);
        }
        matcher.follow(&[token]);
        output.push(token);
    }
    None
}
