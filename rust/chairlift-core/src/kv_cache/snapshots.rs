//! Snapshots of recurrent states: with the blocks before a boundary, what a request of a hybrid needs to begin there.
//!
//! ```text
//! blocks      [ 0..16 | 16..32 | 32..48 | 48..64 ]     each named by its tokens and all before them
//! snapshots            after 32          after 64      of the state behind these tokens, by the same names
//! ```
//!
//! A snapshot is written by the step that computes the last token before its boundary, and can be found once that step
//! has succeeded. It belongs to the namespace of its block, and is forgotten with it; of too many the one that was used
//! longest ago makes room. Its memory may be written again by the step that reads it: reads come first.

use std::collections::HashMap;

use super::{
    KvCache,
    block_table::BlockTable,
    index_list::IndexList,
    prefix_cache::{BlockHash, ByHash},
};
use crate::{
    error::{Violation, ensure},
    ids::Snapshot,
};

#[derive(Clone, Debug)]
struct Entry {
    hash: BlockHash,
    /// A request began with it.
    was_read: bool,
}

/// The snapshots that there is memory for.
#[derive(Clone, Debug)]
pub(super) struct Snapshots {
    /// The entries of the snapshots that can be found.
    entries: Vec<Option<Entry>>,
    by_hash: HashMap<BlockHash, Snapshot, ByHash>,
    /// Neither found nor written by a step in flight.
    free: Vec<Snapshot>,
    /// Those that can be found, the one that was used longest ago first.
    by_use: IndexList,
}

impl Snapshots {
    pub(super) fn new(num_snapshots: usize) -> Self {
        Self {
            entries: vec![None; num_snapshots],
            by_hash: HashMap::with_capacity_and_hasher(num_snapshots, ByHash::default()),
            free: (0..num_snapshots as Snapshot).rev().collect(),
            by_use: IndexList::with_capacity(num_snapshots),
        }
    }

    /// The snapshot behind the block of this name.
    pub(super) fn find(&self, hash: &BlockHash) -> Option<Snapshot> {
        self.by_hash.get(hash).copied()
    }

    /// A request begins with a snapshot that was found in this call of `schedule`. Returns the name of its block, unless
    /// that has been given out since.
    pub(super) fn read(&mut self, snapshot: Snapshot) -> Option<BlockHash> {
        let entry = self.entries[snapshot as usize].as_mut()?;
        entry.was_read = true;
        let hash = entry.hash;
        self.use_again(snapshot);
        Some(hash)
    }

    fn use_again(&mut self, snapshot: Snapshot) {
        self.by_use.remove(snapshot);
        self.by_use.push_back(snapshot);
    }

    /// Memory for a step to write a state to; None if other steps in flight write to all of it.
    pub(super) fn reserve(&mut self) -> Option<Snapshot> {
        if let Some(snapshot) = self.free.pop() {
            return Some(snapshot);
        }
        let oldest = self.by_use.front()?;
        let hash = self.entries[oldest as usize].as_ref()?.hash;
        self.forget(&hash);
        self.free.pop()
    }

    /// The step that wrote it has succeeded. An equal one that is known already stays the known one, and counts as used.
    pub(super) fn publish(&mut self, snapshot: Snapshot, hash: BlockHash) {
        if let Some(known) = self.find(&hash) {
            self.use_again(known);
            self.give_back(snapshot);
            return;
        }
        self.by_hash.insert(hash, snapshot);
        self.entries[snapshot as usize] = Some(Entry {
            hash,
            was_read: false,
        });
        self.by_use.push_back(snapshot);
    }

    /// What a step has written to it is not used.
    pub(super) fn give_back(&mut self, snapshot: Snapshot) {
        self.free.push(snapshot);
    }

    /// The block of this name is no longer known.
    pub(super) fn forget(&mut self, hash: &BlockHash) {
        if let Some(snapshot) = self.by_hash.remove(hash) {
            self.entries[snapshot as usize] = None;
            self.by_use.remove(snapshot);
            self.free.push(snapshot);
        }
    }

    /// A later one takes the place of this one, unless a request has begun with it.
    pub(super) fn supersede(&mut self, hash: &BlockHash) {
        let entry = self.find(hash).map(|snapshot| snapshot as usize);
        let entry = entry.and_then(|snapshot| self.entries[snapshot].as_ref());
        if entry.is_some_and(|entry| !entry.was_read) {
            self.forget(hash);
        }
    }

    pub(super) fn num_found(&self) -> usize {
        self.by_hash.len()
    }

    /// Each snapshot is free, found behind a block that is known, or written by one step in flight.
    ///
    /// # Errors
    /// Names the first that is not.
    pub(super) fn check_invariants(
        &self,
        written: impl Iterator<Item = Snapshot>,
        is_known: impl Fn(&BlockHash) -> bool,
    ) -> Result<(), Violation> {
        let mut uses = vec![0; self.entries.len()];
        for snapshot in self.free.iter().copied().chain(written) {
            uses[snapshot as usize] += 1;
        }
        for (hash, &snapshot) in &self.by_hash {
            uses[snapshot as usize] += 1;
            let entry = self.entries[snapshot as usize].as_ref();
            ensure!(
                entry.is_some_and(|entry| entry.hash == *hash),
                "state snapshot {snapshot} is found by another name"
            );
            ensure!(
                self.by_use.contains(snapshot),
                "state snapshot {snapshot} is not in the order of use"
            );
            ensure!(
                is_known(hash),
                "state snapshot {snapshot} is behind no block"
            );
        }
        let wrong = uses.iter().position(|&uses| uses != 1);
        ensure!(
            wrong.is_none(),
            "state snapshot {} has {} uses, being free counted",
            wrong.unwrap_or(0),
            wrong.map_or(0, |snapshot| uses[snapshot])
        );
        Ok(())
    }
}

impl KvCache {
    /// The snapshot that was found with the blocks of a table that has just been admitted.
    pub(crate) fn read_state(&mut self, table: &mut BlockTable) -> Snapshot {
        let snapshot = table.snapshot.take();
        let snapshot = snapshot.expect("invariant: a hit has a state");
        let snapshots = self.snapshots.as_mut();
        let hash = snapshots.and_then(|snapshots| snapshots.read(snapshot));
        if let Some(hash) = hash.filter(|_| table.is_stored) {
            self.note_state_use(snapshot, &hash, true);
        }
        snapshot
    }

    /// Memory for the state of a request behind a step, if there is any.
    pub(crate) fn reserve_state(&mut self) -> Option<Snapshot> {
        self.snapshots.as_mut()?.reserve()
    }

    /// The step that wrote the state behind the first `num_computed` tokens has succeeded, and their blocks are published.
    /// A snapshot of output takes the place of the one before.
    pub(crate) fn publish_state(
        &mut self,
        table: &mut BlockTable,
        snapshot: Snapshot,
        num_computed: usize,
        is_output: bool,
    ) {
        let Some(snapshots) = &mut self.snapshots else {
            return;
        };
        let hash = table.hashes[num_computed / self.block_size - 1];
        if !self.prefix_cache.has_name(&hash) {
            snapshots.give_back(snapshot);
            return;
        }
        if is_output
            && let Some(before) = table.last_saved.replace(hash)
            && before != hash
        {
            snapshots.supersede(&before);
        }
        snapshots.publish(snapshot, hash);
        // Of an answer the last one is told, when it has ended.
        let is_told = table.is_stored && !is_output;
        if let Some(known) = snapshots.find(&hash).filter(|_| is_told) {
            self.note_state_use(known, &hash, false);
        }
    }

    /// What a step in flight has written, or would have, is not used.
    pub(crate) fn drop_state(&mut self, snapshot: Option<Snapshot>) {
        if let (Some(snapshots), Some(snapshot)) = (&mut self.snapshots, snapshot) {
            snapshots.give_back(snapshot);
        }
    }

    /// Snapshots that requests can begin with.
    pub(crate) fn num_state_snapshots(&self) -> usize {
        self.snapshots.as_ref().map_or(0, Snapshots::num_found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv_cache::{Namespace, prefix_cache::PrefixCache};

    fn hashes(count: i32) -> Vec<BlockHash> {
        let root = PrefixCache::new([3; 32], 1, 2, 2).root(&Namespace::default());
        (0..count).map(|token| root.next(&[token])).collect()
    }

    fn publish(snapshots: &mut Snapshots, hash: BlockHash) {
        let snapshot = snapshots.reserve().expect("there is memory");
        snapshots.publish(snapshot, hash);
    }

    #[test]
    fn the_one_used_longest_ago_makes_room() {
        let (mut snapshots, hashes) = (Snapshots::new(2), hashes(3));
        publish(&mut snapshots, hashes[0]);
        publish(&mut snapshots, hashes[1]);
        snapshots.read(snapshots.find(&hashes[0]).expect("found"));
        publish(&mut snapshots, hashes[2]);
        assert!(snapshots.find(&hashes[0]).is_some());
        assert_eq!(snapshots.find(&hashes[1]), None);
        let none = std::iter::empty();
        assert_eq!(snapshots.check_invariants(none, |_| true), Ok(()));
    }

    #[test]
    fn what_steps_write_is_not_given_out_again() {
        let mut snapshots = Snapshots::new(1);
        let written = snapshots.reserve().expect("there is memory");
        assert_eq!(snapshots.reserve(), None);
        snapshots.give_back(written);
        assert_eq!(snapshots.reserve(), Some(written));
    }

    #[test]
    fn a_superseded_one_stays_if_a_request_began_with_it() {
        let (mut snapshots, hashes) = (Snapshots::new(3), hashes(2));
        publish(&mut snapshots, hashes[0]);
        publish(&mut snapshots, hashes[1]);
        snapshots.read(snapshots.find(&hashes[1]).expect("found"));
        snapshots.supersede(&hashes[0]);
        snapshots.supersede(&hashes[1]);
        assert_eq!(snapshots.find(&hashes[0]), None);
        assert!(snapshots.find(&hashes[1]).is_some());
    }

    #[test]
    fn one_that_is_computed_again_counts_as_used() {
        let (mut snapshots, hashes) = (Snapshots::new(3), hashes(4));
        publish(&mut snapshots, hashes[0]);
        publish(&mut snapshots, hashes[1]);
        publish(&mut snapshots, hashes[0]);
        publish(&mut snapshots, hashes[2]);
        publish(&mut snapshots, hashes[3]);
        assert!(snapshots.find(&hashes[0]).is_some());
        assert_eq!(snapshots.find(&hashes[1]), None);
    }

    #[test]
    fn an_equal_one_takes_no_memory() {
        let (mut snapshots, hashes) = (Snapshots::new(2), hashes(1));
        publish(&mut snapshots, hashes[0]);
        publish(&mut snapshots, hashes[0]);
        assert_eq!(snapshots.num_found(), 1);
        let none = std::iter::empty();
        assert_eq!(snapshots.check_invariants(none, |_| true), Ok(()));
    }
}
