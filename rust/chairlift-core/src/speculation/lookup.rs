//! Drafts from the sequence's own tokens: what followed the longest suffix that occurs before.
//!
//! ```text
//! tokens   ... def area ( width , height ) : ... # call area ( width
//!                       |-- match --| ,  height )   <- drafts      |-- longest suffix --|
//! ```
//!
//! How likely a draft is right depends on the length of the match, and on the request: an edit of a given text copies long
//! runs, free prose hardly any. Each token that is sampled shows whether the match before it would have been right, drafted or
//! not: so the estimates cost no step, and a request whose text does not repeat itself has no drafts.

use super::suffix_automaton::{Match, SuffixAutomaton};

/// Tokens that one call indexes at most: a long prompt takes several steps.
const MAX_PUSHED: usize = 4096;
/// Tokens of a sequence that are indexed at most; each takes some 80 bytes. A longer sequence has no drafts.
const MAX_INDEXED: usize = 32_768;
/// Longest match of each class but the last.
const CLASS_ENDS: [usize; 5] = [1, 2, 4, 8, 16];
const NUM_CLASSES: usize = CLASS_ENDS.len() + 1;
/// How often the token behind a match of each class is right before anything was seen, and the weight of that.
const PRIOR: [f32; NUM_CLASSES] = [0.05, 0.15, 0.35, 0.6, 0.75, 0.9];
const PRIOR_WEIGHT: f32 = 4.0;
/// Weight of the past at each observation: half of it is some 22 observations old.
const MEMORY: f32 = 0.97;

/// The share of drafts that were right, of late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptance {
    prior: f32,
    seen: f32,
    right: f32,
}

impl Acceptance {
    /// The acceptance of proposed drafts before any was checked.
    pub(crate) const OF_PROPOSALS: Self = Self::new(0.8);

    /// Begins as if a share `prior` of a few drafts had been right.
    pub(crate) const fn new(prior: f32) -> Self {
        Self {
            prior,
            seen: PRIOR_WEIGHT,
            right: prior * PRIOR_WEIGHT,
        }
    }

    pub(crate) fn observe(&mut self, is_right: bool) {
        self.seen = self.seen * MEMORY + 1.0;
        self.right = self.right * MEMORY + f32::from(is_right);
    }

    /// Moves towards what it was before anything was seen.
    pub(crate) fn fade(&mut self) {
        self.seen += 1.0 - MEMORY;
        self.right += (1.0 - MEMORY) * self.prior;
    }

    pub(crate) fn rate(self) -> f64 {
        f64::from(self.right / self.seen)
    }
}

fn class_of(len: usize) -> usize {
    CLASS_ENDS
        .iter()
        .position(|&end| len <= end)
        .unwrap_or(NUM_CLASSES - 1)
}

/// The index of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct Lookup {
    automaton: SuffixAutomaton,
    acceptance: [Acceptance; NUM_CLASSES],
}

impl Lookup {
    pub(crate) fn new() -> Self {
        Self {
            automaton: SuffixAutomaton::new(),
            acceptance: PRIOR.map(Acceptance::new),
        }
    }

    /// Indexes tokens that were appended to the sequence, and learns from those behind its prompt.
    pub(crate) fn follow(&mut self, tokens: &[i32], num_prompt: usize) {
        let end = tokens.len().min(MAX_INDEXED);
        let start = self.automaton.len();
        for place in start..end.min(start + MAX_PUSHED) {
            if place >= num_prompt
                && let Some(Match { len, end }) = self.automaton.repeated()
            {
                self.acceptance[class_of(len)].observe(tokens[end] == tokens[place]);
            }
            self.automaton.push(tokens[place]);
        }
    }

    /// Appends up to `max` drafts to `drafts`, each with the probability that it and all before it are right.
    pub(crate) fn propose(&self, tokens: &[i32], max: usize, drafts: &mut Vec<(i32, f64)>) {
        let Some(Match { len, end }) = self.automaton.repeated() else {
            return;
        };
        if self.automaton.len() != tokens.len() {
            return;
        }
        let first = drafts.len();
        let mut odds = 1.0;
        for i in 0..max {
            odds *= self.acceptance[class_of(len + i)].rate();
            let place = end + i;
            let token = match place.checked_sub(tokens.len()) {
                None => tokens[place],
                // A run that repeats itself goes on in its own drafts.
                Some(behind) => drafts[first + behind].0,
            };
            drafts.push((token, odds));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(lookup: &Lookup, tokens: &[i32], max: usize) -> Vec<i32> {
        let mut drafts = Vec::new();
        lookup.propose(tokens, max, &mut drafts);
        assert!(drafts.windows(2).all(|pair| pair[1].1 <= pair[0].1));
        drafts.iter().map(|&(token, _)| token).collect()
    }

    #[test]
    fn drafts_are_what_followed_the_longest_suffix_that_occurs_before() {
        let tokens = [1, 2, 3, 9, 2, 3, 5, 6, 7, 8, 1, 2, 3];
        let mut lookup = Lookup::new();
        lookup.follow(&tokens, 10);
        assert_eq!(proposed(&lookup, &tokens, 4), [9, 2, 3, 5]);
        assert!(proposed(&lookup, &[4, 5, 6], 4).is_empty());
    }

    #[test]
    fn a_run_that_repeats_itself_is_drafted_beyond_its_end() {
        let tokens = [5, 6, 5, 6, 5];
        let mut lookup = Lookup::new();
        lookup.follow(&tokens, 2);
        assert_eq!(proposed(&lookup, &tokens, 6), [6, 5, 6, 5, 6, 5]);
    }

    #[test]
    fn a_text_without_repetition_lowers_the_odds_and_a_copy_raises_them() {
        let odds = |tokens: &[i32], num_prompt| {
            let mut lookup = Lookup::new();
            lookup.follow(tokens, num_prompt);
            let mut drafts = Vec::new();
            lookup.propose(tokens, 1, &mut drafts);
            drafts[0].1
        };
        let prompt: Vec<i32> = (0..100).collect();
        let copy = [&prompt[..], &prompt[..80]].concat();
        assert!(odds(&copy, 100) > 0.9);
        // Each pair of tokens is new, and ends with a token that is not.
        let fresh: Vec<i32> = (0..100).flat_map(|i| [i, 7]).collect();
        assert!(odds(&fresh, 0) < 0.05);
    }

    #[test]
    fn a_long_prompt_is_indexed_over_several_calls_and_only_so_far() {
        let tokens = vec![1; MAX_INDEXED + 10];
        let mut lookup = Lookup::new();
        lookup.follow(&tokens[..MAX_PUSHED + 5], 0);
        assert!(proposed(&lookup, &tokens[..MAX_PUSHED + 5], 2).is_empty());
        lookup.follow(&tokens[..MAX_PUSHED + 5], 0);
        assert_eq!(proposed(&lookup, &tokens[..MAX_PUSHED + 5], 2), [1, 1]);
        for _ in 0..=MAX_INDEXED / MAX_PUSHED {
            lookup.follow(&tokens, 0);
        }
        assert_eq!(lookup.automaton.len(), MAX_INDEXED);
        assert!(proposed(&lookup, &tokens, 2).is_empty());
    }
}
