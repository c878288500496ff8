//! A suffix automaton over the tokens of one sequence, built token by token.
//!
//! Each state stands for all substrings that end at the same positions; `link` leads to the longest suffix that also
//! ends elsewhere. So the link of the newest state is the longest suffix of the tokens that occurs before, found at no
//! cost beyond that of appending (Blumer et al., 1985). Appending takes amortized constant time, and `n` tokens take at
//! most `2 n` states and `3 n` edges, whatever the tokens are.

use std::collections::HashMap;

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;
/// States whose last occurrence is noted per token: more would make the time depend on how often the text repeats itself.
const MAX_NOTED: usize = 16;

#[derive(Clone, Debug)]
struct State {
    /// Length of the longest substring of the state.
    len: u32,
    link: u32,
    /// How many tokens there were after one of the last occurrences.
    end: u32,
    /// First entry of the list of its edges' tokens; needed where a state is split.
    edges: u32,
}

/// A suffix of the tokens that occurs before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// Number of tokens that are equal.
    pub(crate) len: usize,
    /// Place of the token that followed the earlier occurrence.
    pub(crate) end: usize,
}

/// All substrings of the tokens so far.
#[derive(Clone, Debug)]
pub(crate) struct SuffixAutomaton {
    states: Vec<State>,
    /// By a state and a token. A client chooses the tokens: by a hash without a secret seed it could make them collide.
    targets: HashMap<(u32, i32), u32>,
    /// Tokens of edges, and the next entry of the same state.
    edge_tokens: Vec<(i32, u32)>,
    last: u32,
    repeated: Option<Match>,
}

impl SuffixAutomaton {
    /// Without tokens.
    pub(crate) fn new() -> Self {
        let root = State {
            len: 0,
            link: NONE,
            end: 0,
            edges: NONE,
        };
        Self {
            states: vec![root],
            targets: HashMap::new(),
            edge_tokens: Vec::new(),
            last: ROOT,
            repeated: None,
        }
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.states[self.last as usize].len as usize
    }

    /// The longest suffix that occurs before, at one of its latest earlier occurrences.
    pub(crate) fn repeated(&self) -> Option<Match> {
        self.repeated
    }

    /// Appends a token.
    pub(crate) fn push(&mut self, token: i32) {
        let len = self.states[self.last as usize].len + 1;
        let new = self.add_state(len, ROOT, len);
        let mut state = self.last;
        while state != NONE && !self.targets.contains_key(&(state, token)) {
            self.add_edge(state, token, new);
            state = self.states[state as usize].link;
        }
        let link = if state == NONE {
            ROOT
        } else {
            let target = self.targets[&(state, token)];
            let expected = self.states[state as usize].len + 1;
            if self.states[target as usize].len == expected {
                target
            } else {
                self.split(state, token, target, expected)
            }
        };
        self.states[new as usize].link = link;
        self.last = new;
        self.note_end(link, len);
    }

    /// Gives the shorter substrings of `target`, which now end elsewhere too, a state of their own.
    fn split(&mut self, mut state: u32, token: i32, target: u32, len: u32) -> u32 {
        let State {
            link, end, edges, ..
        } = self.states[target as usize];
        let short = self.add_state(len, link, end);
        let mut entry = edges;
        while entry != NONE {
            let (token, next) = self.edge_tokens[entry as usize];
            let end = self.targets[&(target, token)];
            self.add_edge(short, token, end);
            entry = next;
        }
        while state != NONE && self.targets.get(&(state, token)) == Some(&target) {
            self.targets.insert((state, token), short);
            state = self.states[state as usize].link;
        }
        self.states[target as usize].link = short;
        short
    }

    /// Remembers the earlier occurrence of the suffix of state `link`, then that it occurs at the end, `len`.
    fn note_end(&mut self, link: u32, len: u32) {
        self.repeated = (link != ROOT).then(|| {
            let state = &self.states[link as usize];
            Match {
                len: state.len as usize,
                end: state.end as usize,
            }
        });
        let mut state = link;
        for _ in 0..MAX_NOTED {
            if state == ROOT {
                break;
            }
            let noted = &mut self.states[state as usize];
            noted.end = len;
            state = noted.link;
        }
    }

    fn add_state(&mut self, len: u32, link: u32, end: u32) -> u32 {
        self.states.push(State {
            len,
            link,
            end,
            edges: NONE,
        });
        self.states.len() as u32 - 1
    }

    fn add_edge(&mut self, state: u32, token: i32, target: u32) {
        self.targets.insert((state, token), target);
        let edges = &mut self.states[state as usize].edges;
        self.edge_tokens.push((token, *edges));
        *edges = self.edge_tokens.len() as u32 - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The length of the longest suffix that occurs before, by trying all.
    fn longest_repeated(tokens: &[i32]) -> usize {
        let occurs_before = |len: &usize| {
            let suffix = &tokens[tokens.len() - len..];
            tokens[..tokens.len() - 1]
                .windows(*len)
                .any(|window| window == suffix)
        };
        (1..tokens.len()).rev().find(occurs_before).unwrap_or(0)
    }

    proptest! {
        #[test]
        fn the_repeated_suffix_is_the_longest_and_occurs_where_it_says(
            tokens in (1..6_i32).prop_flat_map(|max| prop::collection::vec(0..max, 1..80))
        ) {
            let mut automaton = SuffixAutomaton::new();
            for (i, &token) in tokens.iter().enumerate() {
                automaton.push(token);
                let known = &tokens[..=i];
                prop_assert_eq!(automaton.len(), known.len());
                let found = automaton.repeated();
                prop_assert_eq!(found.map_or(0, |found| found.len), longest_repeated(known));
                if let Some(Match { len, end }) = found {
                    prop_assert!(end < known.len());
                    prop_assert_eq!(&known[end - len..end], &known[known.len() - len..]);
                }
            }
        }
    }

    #[test]
    fn states_and_edges_are_bounded_by_the_number_of_tokens() {
        let hard: Vec<i32> = (0..5000).map(|i| if i % 2 == 0 { 0 } else { i }).collect();
        let same = vec![7; 5000];
        for tokens in [hard, same] {
            let mut automaton = SuffixAutomaton::new();
            for &token in &tokens {
                automaton.push(token);
            }
            assert!(automaton.states.len() <= 2 * tokens.len());
            assert!(automaton.targets.len() <= 3 * tokens.len());
            assert_eq!(automaton.edge_tokens.len(), automaton.targets.len());
        }
    }
}
