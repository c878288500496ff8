//! The text of one answer while it grows: decoded, and cut where a stop string or a pattern matches.
use crate::{
    detokenizer::Detokenizer,
    stop::{Match, StopMatcher},
    stop_regex::StopRegex,
    token_table::TokenTable,
};
use std::sync::Arc;

/// How the text of one answer is made.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// Whether text is wanted; stop strings work without it.
    pub detokenize: bool,
    /// Leaves special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Strings that end the answer; an empty one never matches.
    pub stop: Vec<String>,
    /// Patterns that end the answer as stop strings do.
    pub stop_regex: Option<Arc<StopRegex>>,
    /// The stop string that matched stays part of the text.
    pub include_stop: bool,
}

impl TextOptions {
    /// No text, and nothing in it that ends an answer.
    pub fn without_text() -> Self {
        Self {
            detokenize: false,
            skip_special_tokens: true,
            stop: Vec::new(),
            stop_regex: None,
            include_stop: false,
        }
    }
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
#[repr(C)]
pub struct TextState {
    /// Most answers have no stop strings, and a decode step visits every answer.
    stops: Option<Box<Stops>>,
    detokenize: bool,
    detokenizer: Detokenizer,
}

/// The stop strings of one answer, and what waits for them.
#[derive(Clone, Debug)]
struct Stops {
    strings: Vec<String>,
    matcher: StopMatcher,
    /// A stop string is cut off, so that its possible start must wait.
    cuts: bool,
    /// Decided text that may be the start of a stop string.
    held: String,
    accept: bool,
    stopped: bool,
}

impl TextState {
    pub fn new(options: TextOptions) -> Self {
        let has_stops = !options.stop.is_empty() || options.stop_regex.is_some();
        let stops = has_stops.then(|| {
            Box::new(Stops {
                matcher: StopMatcher::new(&options.stop, options.stop_regex),
                strings: options.stop,
                cuts: options.detokenize && !options.include_stop,
                held: String::new(),
                accept: false,
                stopped: false,
            })
        });
        Self {
            detokenize: options.detokenize,
            detokenizer: Detokenizer::new(options.skip_special_tokens),
            stops,
        }
    }

    /// Makes text of these special tokens, even where special tokens are left out.
    #[must_use]
    pub fn keeping(mut self, kept: Arc<[i32]>) -> Self {
        self.detokenizer.keep(kept);
        self
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
        let Some(stops) = &mut self.stops else {
            if self.detokenize {
                self.detokenizer.push(table, token, out);
            }
            return None;
        };
        if stops.stopped {
            return None;
        }
        stops.accept = match_stops;
        let decided = stops.held.len();
        self.detokenizer.push(table, token, &mut stops.held);
        let found = stops.release(decided, self.detokenize, out);
        if found.is_none() {
            let wait = if stops.cuts {
                stops.matcher.partial_len()
            } else {
                0
            };
            stops.emit(stops.held.len() - wait, self.detokenize, out);
        }
        found
    }

    /// The answer ended without a stop string: releases what is held back.
    ///
    /// An incomplete character becomes U+FFFD, as a full decode shows it. `Some(i)`: the end decided text
    /// that holds stop string `i` (a byte run stays open until a token or the end follows); the text is
    /// cut there as in [`TextState::push`].
    pub fn finish(&mut self, table: &TokenTable, out: &mut String) -> Option<usize> {
        let Some(stops) = &mut self.stops else {
            if self.detokenize {
                self.detokenizer.finish(table, out);
            }
            return None;
        };
        if stops.stopped {
            return None;
        }
        let decided = stops.held.len();
        self.detokenizer.finish(table, &mut stops.held);
        let found = stops.release(decided, self.detokenize, out);
        if found.is_none() {
            stops.emit(stops.held.len(), self.detokenize, out);
        }
        found
    }

    /// Replaces the stop strings of an answer that goes on after `so_far`.
    ///
    /// The new ones are looked for in text that was not given out yet: a match counts if a token pushed from now on
    /// decides its last character, and may begin in what was held back for the old ones.
    pub fn set_stops(
        &mut self,
        table: &TokenTable,
        so_far: &[i32],
        stop: Vec<String>,
        stop_regex: Option<Arc<StopRegex>>,
        include_stop: bool,
    ) {
        if self.stops.is_none() && stop.is_empty() && stop_regex.is_none() {
            return;
        }
        if self.stops.is_none() && !self.detokenize {
            // Nothing has been decoded, since no client wanted it.
            let mut passed = String::new();
            for &token in so_far {
                self.detokenizer.push(table, token, &mut passed);
            }
        }
        let held = self.stops.take().map_or(String::new(), |old| old.held);
        let mut matcher = StopMatcher::new(&stop, stop_regex);
        matcher.feed(&held, false);
        self.stops = Some(Box::new(Stops {
            matcher,
            strings: stop,
            cuts: self.detokenize && !include_stop,
            held,
            accept: false,
            stopped: false,
        }));
    }

    /// Stop string `i`, counted as in [`TextOptions::stop`]; patterns follow the strings.
    ///
    /// # Panics
    /// If there is none.
    pub fn stop(&self, i: usize) -> &str {
        let stops = self.stops.as_ref();
        let stops = stops.expect("invariant: a stop string matched");
        let string = stops.strings.get(i);
        string.map_or_else(
            || stops.matcher.pattern(i - stops.strings.len()),
            String::as_str,
        )
    }
}

impl Stops {
    /// Looks for stop strings in `held[decided..]`; where one ends, the text before it goes to `out`.
    fn release(&mut self, decided: usize, detokenize: bool, out: &mut String) -> Option<usize> {
        let Match { stop, end, len } = self.matcher.feed(&self.held[decided..], self.accept)?;
        let end = decided + end;
        let start = if self.cuts { end - len } else { end };
        self.emit(start, detokenize, out);
        self.held = String::new();
        self.stopped = true;
        Some(stop)
    }

    /// Moves the first `len` bytes of `held` to `out`, if text is wanted.
    fn emit(&mut self, len: usize, detokenize: bool, out: &mut String) {
        if detokenize {
            out.push_str(&self.held[..len]);
        }
        self.held.drain(..len);
    }
}
