//! Which replicas have which blocks, as far as the router knows.
//!
//! A replica keeps the blocks of the prompts that it was sent, and forgets the least recently used first: the index does
//! the same for each replica, with as many names as the replica has blocks. So it is bounded, and right without a word
//! from the replica.
//!
//! ```text
//! name -> replicas that have it       a b c d    replica 0 has a b c
//!   a  -> 0 1 2                       ^^^^^^^    replica 1 has a b
//!   b  -> 0 1                                    replica 2 has a
//!   c  -> 0
//! ```
//!
//! The names of a prompt are used from the last to the first, so that a block is never forgotten before those behind it:
//! the replicas that have a name have every name before it. Equal numbers of replicas at two places of a prompt are
//! therefore the same replicas, and a beginning that all replicas share costs one pass over them, however long it is.

use std::collections::HashMap;

use crate::replica_id::ReplicaId;

const NONE: u32 = u32::MAX;

/// One name that one replica has.
#[derive(Clone, Copy, Debug)]
struct Entry {
    name: u64,
    replica: ReplicaId,
    /// Among the names of the replica, in order of use.
    newer: u32,
    older: u32,
    /// Among the replicas that have the name.
    next: u32,
    previous: u32,
}

/// The replicas that have a name.
#[derive(Clone, Copy, Debug)]
struct Holders {
    first: u32,
    count: u32,
}

/// The names of a replica.
#[derive(Clone, Copy, Debug)]
struct Names {
    newest: u32,
    oldest: u32,
    count: u32,
}

const NO_NAMES: Names = Names {
    newest: NONE,
    oldest: NONE,
    count: 0,
};

#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// Names of a replica at most.
    capacity: usize,
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_name: HashMap<u64, Holders, foldhash::fast::FixedState>,
    by_pair: HashMap<(u64, ReplicaId), u32, foldhash::fast::FixedState>,
    replicas: Vec<Names>,
    /// What the last lookup found.
    matched: Vec<u32>,
    holders: Vec<ReplicaId>,
}

impl Index {
    pub(crate) fn new(num_replicas: usize, capacity: usize) -> Self {
        Self {
            capacity,
            entries: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::default(),
            by_pair: HashMap::default(),
            replicas: vec![NO_NAMES; num_replicas],
            matched: vec![0; num_replicas],
            holders: Vec::new(),
        }
    }

    /// Finds how many leading names of a prompt each replica has.
    pub(crate) fn lookup(&mut self, names: &[u64]) {
        for replica in self.holders.drain(..) {
            self.matched[replica as usize] = 0;
        }
        let found = names.iter().map_while(|name| self.by_name.get(name));
        let found: Vec<Holders> = found.copied().collect();
        let mut num_seen = 0;
        for (place, holders) in found.iter().enumerate().rev() {
            if holders.count == num_seen {
                continue;
            }
            num_seen = holders.count;
            let mut at = holders.first;
            while at != NONE {
                let entry = &self.entries[at as usize];
                let matched = &mut self.matched[entry.replica as usize];
                if *matched == 0 {
                    *matched = place as u32 + 1;
                    self.holders.push(entry.replica);
                }
                at = entry.next;
            }
        }
    }

    /// How many leading names of the prompt that was looked up a replica has.
    pub(crate) fn matched(&self, replica: ReplicaId) -> usize {
        self.matched[replica as usize] as usize
    }

    /// A replica has the blocks of a prompt from now on, as far as they fit.
    pub(crate) fn insert(&mut self, replica: ReplicaId, names: &[u64]) {
        let num_kept = names.len().min(self.capacity);
        for &name in names[..num_kept].iter().rev() {
            if let Some(&at) = self.by_pair.get(&(name, replica)) {
                self.leave_order(at);
                self.enter_order(at);
                continue;
            }
            if self.replicas[replica as usize].count as usize == self.capacity {
                self.remove(self.replicas[replica as usize].oldest);
            }
            self.add(name, replica);
        }
    }

    /// A replica has lost all of its blocks.
    pub(crate) fn forget(&mut self, replica: ReplicaId) {
        while self.replicas[replica as usize].count > 0 {
            self.remove(self.replicas[replica as usize].oldest);
        }
    }

    /// Names, one counted for each replica that has it.
    pub(crate) fn len(&self) -> usize {
        self.by_pair.len()
    }

    fn add(&mut self, name: u64, replica: ReplicaId) {
        let at = self.free.pop().unwrap_or(self.entries.len() as u32);
        let holders = self.by_name.entry(name).or_insert(Holders {
            first: NONE,
            count: 0,
        });
        let entry = Entry {
            name,
            replica,
            newer: NONE,
            older: NONE,
            next: holders.first,
            previous: NONE,
        };
        (holders.first, holders.count) = (at, holders.count + 1);
        if let Some(place) = self.entries.get_mut(at as usize) {
            *place = entry;
        } else {
            self.entries.push(entry);
        }
        if entry.next != NONE {
            self.entries[entry.next as usize].previous = at;
        }
        self.by_pair.insert((name, replica), at);
        self.enter_order(at);
    }

    fn remove(&mut self, at: u32) {
        self.leave_order(at);
        let entry = self.entries[at as usize];
        if entry.next != NONE {
            self.entries[entry.next as usize].previous = entry.previous;
        }
        if entry.previous != NONE {
            self.entries[entry.previous as usize].next = entry.next;
        }
        if let Some(holders) = self.by_name.get_mut(&entry.name) {
            holders.count -= 1;
            if holders.first == at {
                holders.first = entry.next;
            }
            if holders.count == 0 {
                self.by_name.remove(&entry.name);
            }
        }
        self.by_pair.remove(&(entry.name, entry.replica));
        self.free.push(at);
    }

    /// The entry is the newest of its replica.
    fn enter_order(&mut self, at: u32) {
        let names = &mut self.replicas[self.entries[at as usize].replica as usize];
        let before = std::mem::replace(&mut names.newest, at);
        names.count += 1;
        if before == NONE {
            names.oldest = at;
        } else {
            self.entries[before as usize].newer = at;
        }
        let entry = &mut self.entries[at as usize];
        (entry.older, entry.newer) = (before, NONE);
    }

    fn leave_order(&mut self, at: u32) {
        let entry = self.entries[at as usize];
        let names = &mut self.replicas[entry.replica as usize];
        names.count -= 1;
        if names.newest == at {
            names.newest = entry.older;
        }
        if names.oldest == at {
            names.oldest = entry.newer;
        }
        if entry.newer != NONE {
            self.entries[entry.newer as usize].older = entry.older;
        }
        if entry.older != NONE {
            self.entries[entry.older as usize].newer = entry.newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same as plain lists: the names of each replica in order of use, the newest last.
    struct Plain {
        capacity: usize,
        names: Vec<Vec<u64>>,
    }

    impl Plain {
        fn insert(&mut self, replica: usize, names: &[u64]) {
            let num_kept = names.len().min(self.capacity);
            let list = &mut self.names[replica];
            for name in names[..num_kept].iter().rev() {
                list.retain(|known| known != name);
                list.push(*name);
                let over = list.len().saturating_sub(self.capacity);
                list.drain(..over);
            }
        }

        fn lookup(&self, names: &[u64]) -> Vec<u32> {
            let matched = |list: &Vec<u64>| names.iter().take_while(|n| list.contains(n)).count();
            self.names.iter().map(|list| matched(list) as u32).collect()
        }
    }

    /// The names of a prompt: of each place in a tree, so that equal names have equal beginnings.
    fn chained(choices: &[u8]) -> Vec<u64> {
        choices
            .iter()
            .scan(1_u64, |name, &choice| {
                *name =
                    crate::random::mix(name.wrapping_mul(5).wrapping_add(1 + u64::from(choice)));
                Some(*name)
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        #[test]
        fn the_index_is_that_of_plain_lists(
            capacity in 1..12_usize,
            steps in prop::collection::vec((0..5_u16, prop::collection::vec(0..2_u8, 0..9), 0..12_u8), 1..120),
        ) {
            let mut index = Index::new(5, capacity);
            let mut plain = Plain { capacity, names: vec![Vec::new(); 5] };
            for (replica, choices, kind) in steps {
                let names = chained(&choices);
                if kind == 0 {
                    index.forget(replica);
                    plain.names[replica as usize].clear();
                } else {
                    index.insert(replica, &names);
                    plain.insert(replica as usize, &names);
                }
                let expected = plain.lookup(&names);
                index.lookup(&names);
                prop_assert_eq!(&index.matched, &expected);
                let counts: usize = plain.names.iter().map(Vec::len).sum();
                prop_assert_eq!(index.len(), counts);
                // What was removed is used again: there is no growth behind the bound.
                prop_assert!(index.entries.len() <= 5 * capacity);
                let distinct: std::collections::HashSet<_> = plain.names.iter().flatten().collect();
                prop_assert_eq!(index.by_name.len(), distinct.len());
            }
        }
    }
}
