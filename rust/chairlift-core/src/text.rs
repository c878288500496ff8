//! From token ids to text: incremental detokenisation and stop strings.
//!
//! - For every token sequence, the deltas of a [`TextState`] concatenate to what the model's own decoder
//!   (`tokenizers`) makes of the whole sequence; where it cuts at a stop string, to a prefix of that.
//! - A delta never splits a character.
//! - What is held back is an undecided character or byte run, and the longest end of the text that can
//!   still become a stop string: nothing more. Without stop strings decided text passes straight through.
//! - A token costs O(bytes x stop strings); memory is the longest stop string plus a byte run.
//!
//! ```text
//!   token ids ──► Detokenizer ──► decided text ──► StopMatcher ──► delta
//!                 holds: bytes of                  holds: a possible
//!                 an open character                start of a stop string
//!                 or byte run
//! ```
mod detokenizer;
mod stop;
mod token_table;

use detokenizer::Detokenizer;
use stop::{Match, StopMatcher};
pub use token_table::TokenTable;

/// How the text of one answer is made.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// Whether text is wanted; stop strings work without it.
    pub detokenize: bool,
    /// Leaves special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Strings that end the answer; an empty one never matches.
    pub stop: Vec<String>,
    /// The stop string that matched stays part of the text.
    pub include_stop: bool,
}

/// The text of one answer while it grows.
///
/// # Which stop string matches
///
/// The one that ends first; among those that end at the same byte the longest, which leaves the least of
/// a stop string in the text; among equals the first listed. A match counts if the token that decides its
/// last character was pushed with `match_stops`; it may begin before. So with `min_tokens`, a stop string
/// that is complete earlier is plain text, and one that only begins earlier still ends the answer.
#[derive(Clone, Debug)]
pub struct TextState {
    options: TextOptions,
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    /// Decided text that may be the start of a stop string.
    held: String,
    match_stops: bool,
    stopped: bool,
}

impl TextState {
    pub fn new(options: TextOptions) -> Self {
        Self {
            detokenizer: Detokenizer::new(options.skip_special_tokens),
            matcher: StopMatcher::new(&options.stop),
            held: String::new(),
            match_stops: false,
            stopped: false,
            options,
        }
    }

    /// Appends one token; complete, decided text goes to `out`.
    ///
    /// `match_stops` is false before `min_tokens`. `Some(i)`: stop string `i` matched; the text before it
    /// (with it, when `include_stop`) is in `out` and nothing follows, whatever is pushed. An id outside
    /// the table contributes nothing.
    pub fn push(
        &mut self,
        table: &TokenTable,
        token: i32,
        match_stops: bool,
        out: &mut String,
    ) -> Option<usize> {
        if self.stopped {
            return None;
        }
        if self.matcher.is_empty() {
            if self.options.detokenize {
                self.detokenizer.push(table, token, out);
            }
            return None;
        }
        self.match_stops = match_stops;
        let decided = self.held.len();
        self.detokenizer.push(table, token, &mut self.held);
        let found = self.release(decided, out);
        if found.is_none() {
            let wait = if self.cuts() {
                self.matcher.partial_len()
            } else {
                0
            };
            self.emit(self.held.len() - wait, out);
        }
        found
    }

    /// The answer ended without a stop string: releases what is held back.
    ///
    /// An incomplete character becomes U+FFFD, as a full decode shows it. `Some(i)`: the end decided text
    /// that holds stop string `i` (a byte run stays open until a token or the end follows); the text is
    /// cut there as in [`TextState::push`].
    pub fn finish(&mut self, table: &TokenTable, out: &mut String) -> Option<usize> {
        if self.stopped {
            return None;
        }
        let decided = self.held.len();
        self.detokenizer.finish(table, &mut self.held);
        let found = self.release(decided, out);
        if found.is_none() {
            self.emit(self.held.len(), out);
        }
        found
    }

    /// Stop string `i`, counted as in [`TextOptions::stop`].
    pub fn stop(&self, i: usize) -> &str {
        &self.options.stop[i]
    }

    /// Looks for stop strings in `held[decided..]`; where one ends, the text before it goes to `out`.
    fn release(&mut self, decided: usize, out: &mut String) -> Option<usize> {
        let Match { stop, end } = self.matcher.feed(&self.held[decided..], self.match_stops)?;
        let end = decided + end;
        let start = if self.cuts() {
            end - self.options.stop[stop].len()
        } else {
            end
        };
        self.emit(start, out);
        self.held = String::new();
        self.stopped = true;
        Some(stop)
    }

    /// Whether a stop string is cut off, so that its possible start must wait.
    fn cuts(&self) -> bool {
        self.options.detokenize && !self.options.include_stop
    }

    /// Moves the first `len` bytes of `held` to `out`.
    fn emit(&mut self, len: usize, out: &mut String) {
        if self.options.detokenize {
            out.push_str(&self.held[..len]);
        }
        self.held.drain(..len);
    }
}
