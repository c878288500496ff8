//! Regular expressions that end an answer, over a text that arrives in pieces.
//!
//! One automaton of bounded size for all patterns, built before the answer begins. Each byte is a possible start of a match:
//! starts that are in the same state have the same future but for the bound of a match, and are followed together. There
//! are fewer starts than a match may have bytes, and the oldest one says how much text waits.
use regex_automata::{
    Anchored, Input, MatchKind,
    dfa::{Automaton, StartKind, dense},
    nfa::thompson,
    util::{primitives::StateID, syntax},
};
use std::fmt;

/// The longest match that ends an answer, and so the most text that waits.
pub const MAX_STOP_MATCH: usize = 256;
const MAX_AUTOMATON_BYTES: usize = 1 << 19;
const MAX_BUILD_BYTES: usize = 2 << 20;

/// Patterns that end an answer.
pub struct StopRegex {
    automaton: dense::DFA<Vec<u32>>,
    start: StateID,
    patterns: Vec<String>,
}

impl fmt::Debug for StopRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StopRegex").field(&self.patterns).finish()
    }
}

impl StopRegex {
    /// Builds the automaton, in bounded time and memory.
    ///
    /// # Errors
    /// The position of a pattern, and what is wrong with it: it is no regular expression, looks around, matches the empty
    /// text, or makes a larger automaton than there may be.
    pub fn new(patterns: Vec<String>) -> Result<Self, (usize, String)> {
        let mut parsed = Vec::new();
        for (i, pattern) in patterns.iter().enumerate() {
            let hir = syntax::parse(pattern).map_err(|error| {
                let text = error.to_string();
                let line = text.lines().last().unwrap_or_default();
                (i, line.trim_start_matches("error: ").to_owned())
            })?;
            let properties = hir.properties();
            if !properties.look_set().is_empty() {
                let text =
                    "expected no anchor or word boundary: a match may begin and end anywhere";
                return Err((i, text.to_owned()));
            }
            match properties.minimum_len() {
                Some(0) => return Err((i, "expected no match of the empty text".to_owned())),
                Some(len) if len <= MAX_STOP_MATCH => {}
                _ => {
                    return Err((
                        i,
                        format!("expected matches of at most {MAX_STOP_MATCH} bytes"),
                    ));
                }
            }
            parsed.push(hir);
        }
        let too_large = |_| {
            (
                0,
                "expected a smaller automaton: fewer repetitions or classes".to_owned(),
            )
        };
        let limits = thompson::Config::new().nfa_size_limit(Some(MAX_BUILD_BYTES));
        let mut compiler = thompson::Compiler::new();
        let nfa = compiler.configure(limits).build_many_from_hir(&parsed);
        let nfa = nfa.map_err(|error| too_large(error.to_string()))?;
        let config = dense::Config::new()
            .match_kind(MatchKind::All)
            .start_kind(StartKind::Anchored)
            .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
            .determinize_size_limit(Some(MAX_BUILD_BYTES));
        let mut builder = dense::Builder::new();
        let automaton = builder.configure(config).build_from_nfa(&nfa);
        let automaton = automaton.map_err(|error| too_large(error.to_string()))?;
        let input = Input::new("").anchored(Anchored::Yes);
        let start = automaton.start_state_forward(&input);
        let start = start.map_err(|error| too_large(error.to_string()))?;
        Ok(Self {
            automaton,
            start,
            patterns,
        })
    }

    pub(crate) fn pattern(&self, i: usize) -> &str {
        &self.patterns[i]
    }
}

/// The possible starts of a match, by the state of the automaton that they are in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Starts(Vec<(StateID, Ages)>);

impl Starts {
    /// Reads one byte; the pattern and length of the longest match that ends with it.
    pub(crate) fn step(&mut self, regex: &StopRegex, byte: u8) -> Option<(usize, usize)> {
        let automaton = &regex.automaton;
        let mut longest: Option<(usize, usize)> = None;
        self.0.push((regex.start, Ages::default()));
        self.0.retain_mut(|(state, ages)| {
            *state = automaton.next_state(*state, byte);
            if automaton.is_dead_state(*state) {
                return false;
            }
            ages.advance();
            let (end, len) = (automaton.next_eoi_state(*state), ages.oldest());
            if automaton.is_match_state(end)
                && longest.is_none_or(|(_, len_so_far)| len > len_so_far)
            {
                longest = Some((automaton.match_pattern(end, 0).as_usize(), len));
            }
            ages.drop_longest();
            ages.oldest() > 0
        });
        if self.0.len() > 1 {
            self.0.sort_unstable_by_key(|&(state, _)| state);
            self.0.dedup_by(|(state, ages), (kept_state, kept)| {
                let is_same = state == kept_state;
                if is_same {
                    kept.merge(*ages);
                }
                is_same
            });
        }
        longest
    }

    /// Bytes at the end of the text that can still become a match.
    pub(crate) fn partial_len(&self) -> usize {
        self.0
            .iter()
            .map(|(_, ages)| ages.oldest())
            .max()
            .unwrap_or(0)
    }
}

/// How many bytes ago starts are: bit `i` stands for one `i + 1` bytes ago.
#[derive(Clone, Copy, Debug, Default)]
struct Ages([u64; MAX_STOP_MATCH / 64]);

impl Ages {
    /// One byte later; a set without starts gets one.
    fn advance(&mut self) {
        let mut carry = u64::from(self.oldest() == 0);
        for word in &mut self.0 {
            (*word, carry) = (*word << 1 | carry, *word >> 63);
        }
    }

    /// 0: there is no start.
    fn oldest(&self) -> usize {
        let words = self.0.iter().enumerate().rev();
        let mut found = words.filter(|(_, word)| **word != 0);
        found
            .next()
            .map_or(0, |(i, word)| 64 * (i + 1) - word.leading_zeros() as usize)
    }

    /// A start that is as old as a match is long has no future.
    fn drop_longest(&mut self) {
        self.0[MAX_STOP_MATCH / 64 - 1] &= !(1 << 63);
    }

    fn merge(&mut self, other: Self) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }
}
