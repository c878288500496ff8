//! Stop strings over a text that arrives in pieces.
//!
//! One Knuth-Morris-Pratt automaton per stop string: its state is the length of the longest end of the text that begins
//! the stop string, which is also what must be held back. No text is kept and none is looked at twice.

use crate::stop_regex::{Starts, StopRegex};
use std::sync::Arc;

/// Where a stop string ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// Index in the list of stop strings, then of patterns.
    pub(crate) stop: usize,
    /// Offset in the piece of text.
    pub(crate) end: usize,
    /// Bytes that matched; their start may be in an earlier piece.
    pub(crate) len: usize,
}

/// The stop strings of one answer.
#[derive(Clone, Debug)]
pub(crate) struct StopMatcher {
    automata: Vec<Automaton>,
    regex: Option<(Arc<StopRegex>, Starts)>,
}

impl StopMatcher {
    pub(crate) fn new(stop: &[String], regex: Option<Arc<StopRegex>>) -> Self {
        Self {
            automata: stop.iter().map(|stop| Automaton::new(stop)).collect(),
            regex: regex.map(|regex| (regex, Starts::default())),
        }
    }

    /// Reads on; returns the earliest match that ends in `text`, the longest of those that end together.
    ///
    /// With `accept` false matches are passed over, and only a later one can count.
    pub(crate) fn feed(&mut self, text: &str, accept: bool) -> Option<Match> {
        for (at, byte) in text.bytes().enumerate() {
            let mut longest: Option<(usize, usize)> = None;
            for (i, automaton) in self.automata.iter_mut().enumerate() {
                let len = automaton.pattern.len();
                if automaton.step(byte) && longest.is_none_or(|(_, len_so_far)| len > len_so_far) {
                    longest = Some((i, len));
                }
            }
            if let Some((regex, starts)) = &mut self.regex
                && let Some((i, len)) = starts.step(regex, byte)
                && longest.is_none_or(|(_, len_so_far)| len > len_so_far)
            {
                longest = Some((self.automata.len() + i, len));
            }
            if let (Some((stop, len)), true) = (longest, accept) {
                let end = at + 1;
                return Some(Match { stop, end, len });
            }
        }
        None
    }

    /// Bytes at the end of the text that can still become a stop string.
    pub(crate) fn partial_len(&self) -> usize {
        let lengths = self.automata.iter().map(|automaton| automaton.matched);
        let of_regex = self.regex.as_ref().map(|(_, starts)| starts.partial_len());
        lengths.chain(of_regex).max().unwrap_or(0)
    }

    /// Pattern `i`.
    pub(crate) fn pattern(&self, i: usize) -> &str {
        let regex = self.regex.as_ref();
        regex.expect("invariant: a pattern matched").0.pattern(i)
    }
}

#[derive(Clone, Debug)]
struct Automaton {
    pattern: Box<[u8]>,
    /// `borders[i]`: length of the longest proper prefix of `pattern[..=i]` that is also its end.
    borders: Box<[usize]>,
    /// Bytes of `pattern` that the text ends with; less than all of them.
    matched: usize,
}

impl Automaton {
    fn new(pattern: &str) -> Self {
        let pattern = pattern.as_bytes();
        let mut borders = vec![0; pattern.len()];
        let mut matched = 0;
        for (i, &byte) in pattern.iter().enumerate().skip(1) {
            while matched > 0 && pattern[matched] != byte {
                matched = borders[matched - 1];
            }
            matched += usize::from(pattern[matched] == byte);
            borders[i] = matched;
        }
        Self {
            pattern: pattern.into(),
            borders: borders.into(),
            matched: 0,
        }
    }

    /// Reads one byte; true if the pattern ends with it.
    fn step(&mut self, byte: u8) -> bool {
        let Some(&last) = self.borders.last() else {
            return false;
        };
        while self.matched > 0 && self.pattern[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.pattern[self.matched] == byte);
        let whole = self.matched == self.pattern.len();
        if whole {
            self.matched = last;
        }
        whole
    }
}
