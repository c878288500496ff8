//! Which blocks are worth a write: by default those that a second request uses.

use std::collections::HashSet;

use crate::segment::Name;

/// Names of blocks that were computed and not written, at most twice as many.
const MAX_SEEN: usize = 1 << 16;

/// Remembers what was used once.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Every use is enough.
    admits_first: bool,
    seen: HashSet<Name>,
    /// What was seen before those; forgotten when they become these.
    seen_before: HashSet<Name>,
}

impl Admission {
    /// Nothing was seen yet.
    pub(crate) fn new(admits_first: bool) -> Self {
        Self {
            admits_first,
            ..Self::default()
        }
    }

    /// Whether a block is written: it was found in the cache, or it is computed for the second time.
    pub(crate) fn admits(&mut self, name: Name, is_hit: bool) -> bool {
        if self.admits_first || is_hit {
            return true;
        }
        if self.seen.contains(&name) || self.seen_before.contains(&name) {
            return true;
        }
        if self.seen.len() >= MAX_SEEN {
            self.seen_before = std::mem::take(&mut self.seen);
        }
        self.seen.insert(name);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Name {
        let mut name = [0; 32];
        name[..8].copy_from_slice(&number.to_le_bytes());
        name
    }

    #[test]
    fn the_second_use_admits_and_the_memory_of_the_first_is_bounded() {
        let mut admission = Admission::default();
        assert!(!admission.admits(name(0), false));
        assert!(admission.admits(name(0), false));
        assert!(admission.admits(name(1), true), "a hit is a second use");
        for number in 2..3 * MAX_SEEN {
            admission.admits(name(number), false);
        }
        assert!(admission.seen.len() + admission.seen_before.len() <= 2 * MAX_SEEN);
        assert!(!admission.admits(name(0), false), "forgotten");
    }
}
