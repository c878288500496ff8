//! The tokens of one sequence by position, and how often each occurs before a position.
//!
//! A draw at position p sees the tokens `0..p` and nothing else. Drafts are written before the draws behind them, and a
//! token that is written again at an earlier position (after a wrong draft, a preemption or a failed step) takes the place of
//! the old one: what was counted from there on is taken back.

use foldhash::fast::FixedState;
use std::collections::HashMap;

/// By token. Its seed is fixed: a process iterates over it as any other does.
pub type TokenMap<V> = HashMap<i32, V, FixedState>;

/// How often a token occurs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// In prompt and output.
    pub all: u32,
    /// In the output.
    pub output: u32,
}

/// The tokens of a sequence, and counts of those before one position.
#[derive(Debug, Default)]
pub struct History {
    tokens: Vec<i32>,
    num_prompt: usize,
    counts: TokenMap<Count>,
    /// `counts` are of the tokens before this position.
    num_counted: usize,
    /// The first position that was written since it was last asked for.
    first_changed: usize,
}

impl History {
    /// The history of a sequence that has its prompt alone.
    pub fn new(prompt: Vec<i32>) -> Self {
        Self {
            num_prompt: prompt.len(),
            tokens: prompt,
            ..Self::default()
        }
    }

    /// Writes the token of a position; false, and nothing changes, if the token before it is not known.
    pub fn write(&mut self, position: usize, token: i32) -> bool {
        if position > self.tokens.len() {
            return false;
        }
        if self.tokens.get(position) == Some(&token) {
            return true;
        }
        // What was counted from here on is no longer so.
        self.count_before(position.min(self.num_counted));
        self.first_changed = self.first_changed.min(position);
        if position == self.tokens.len() {
            self.tokens.push(token);
        } else {
            self.tokens[position] = token;
        }
        true
    }

    /// Forgets the tokens from a position on.
    pub fn forget_from(&mut self, position: usize) {
        if position < self.tokens.len() {
            self.count_before(position.min(self.num_counted));
            self.first_changed = self.first_changed.min(position);
            self.tokens.truncate(position);
        }
    }

    /// The tokens before a position, or all that are known if these are fewer.
    pub fn before(&self, position: usize) -> &[i32] {
        &self.tokens[..position.min(self.tokens.len())]
    }

    /// How often each token occurs before a position; a token that does not occur may have a count of 0.
    pub fn counts(&mut self, position: usize) -> &TokenMap<Count> {
        self.count_before(position.min(self.tokens.len()));
        &self.counts
    }

    /// The first position whose token may differ from what it was at the last call.
    pub fn take_first_changed(&mut self) -> usize {
        std::mem::replace(&mut self.first_changed, usize::MAX)
    }

    fn count_before(&mut self, position: usize) {
        while self.num_counted > position {
            self.num_counted -= 1;
            let is_output = u32::from(self.num_counted >= self.num_prompt);
            if let Some(count) = self.counts.get_mut(&self.tokens[self.num_counted]) {
                count.all -= 1;
                count.output -= is_output;
            }
        }
        while self.num_counted < position {
            let is_output = u32::from(self.num_counted >= self.num_prompt);
            let count = self
                .counts
                .entry(self.tokens[self.num_counted])
                .or_default();
            count.all += 1;
            count.output += is_output;
            self.num_counted += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts that are not 0, in order of tokens.
    fn counts(history: &mut History, position: usize) -> Vec<(i32, u32, u32)> {
        let counts = history.counts(position).iter();
        let counts = counts.filter(|(_, count)| count.all > 0);
        let mut counts: Vec<_> = counts.map(|(&id, c)| (id, c.all, c.output)).collect();
        counts.sort_unstable();
        counts
    }

    #[test]
    fn counts_tell_prompt_and_output_apart() {
        let mut history = History::new(vec![5, 6, 5]);
        assert!(history.write(3, 5));
        assert_eq!(counts(&mut history, 3), [(5, 2, 0), (6, 1, 0)]);
        assert_eq!(counts(&mut history, 4), [(5, 3, 1), (6, 1, 0)]);
        assert_eq!(counts(&mut history, 1), [(5, 1, 0)]);
    }

    #[test]
    fn a_token_that_is_written_again_takes_the_place_of_the_old_one() {
        let mut history = History::new(vec![5]);
        for (position, draft) in [(1, 7), (2, 8), (3, 9)] {
            assert!(history.write(position, draft));
        }
        assert_eq!(
            counts(&mut history, 4),
            [(5, 1, 0), (7, 1, 1), (8, 1, 1), (9, 1, 1)]
        );
        // The second draft was wrong.
        assert!(history.write(2, 7));
        assert_eq!(history.before(3), [5, 7, 7]);
        assert_eq!(counts(&mut history, 3), [(5, 1, 0), (7, 2, 2)]);
    }

    #[test]
    fn what_is_forgotten_is_not_counted() {
        let mut history = History::new(vec![5, 6]);
        for (position, token) in [(2, 7), (3, 7)] {
            assert!(history.write(position, token));
        }
        assert_eq!(counts(&mut history, 4), [(5, 1, 0), (6, 1, 0), (7, 2, 2)]);
        history.take_first_changed();
        history.forget_from(3);
        assert_eq!(history.before(9), [5, 6, 7]);
        assert_eq!(counts(&mut history, 9), [(5, 1, 0), (6, 1, 0), (7, 1, 1)]);
        assert_eq!(history.take_first_changed(), 3);
    }

    #[test]
    fn a_token_behind_a_gap_is_refused() {
        let mut history = History::new(vec![5]);
        assert!(!history.write(2, 6));
        assert_eq!(history.before(9), [5]);
    }

    #[test]
    fn what_has_changed_is_told_once() {
        let mut history = History::new(vec![5, 6]);
        assert_eq!(history.take_first_changed(), 0);
        assert_eq!(history.take_first_changed(), usize::MAX);
        history.write(2, 7);
        history.write(1, 6);
        assert_eq!(history.take_first_changed(), 2);
    }
}
