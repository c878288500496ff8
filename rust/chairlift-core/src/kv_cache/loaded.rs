//! Blocks that a store outside of the pool keeps: what is used is told, and what was loaded is made known.
//!
//! ```text
//! publish, hit ---> uses ---> the engine copies the block to the store before a step writes anything
//! a request waits, held   ---> missing ---> the engine loads ---> insert: blocks that the prefix cache knows
//! ```
//!
//! A block goes by a keyed hash of its name and its KV group, which is the same in the next process that has the same key.
//!
//! What a request lacks is a beginning of its prompt: all full blocks, where another server computes what it has not, or as many as a
//! store has all of. Its blocks have numbers, by block index and then by group. A group with a window has those
//! alone that the token behind the last block sees; of one group without a window, numbers are block indices:
//!
//! ```text
//! block index           0    1    2    3
//! group without       [ 0  | 1  | 2  | 4  ]
//! group with window   [ -  | -  | 3  | 5  ]
//! ```
//!
//! A model with recurrent states can continue a prompt behind its blocks only with the state behind the last of them. That
//! state goes by a name of its own, and is inserted after the blocks.

use super::{KvCache, block_table::BlockTable, prefix_cache::BlockHash};
use crate::ids::{BlockId, NULL_BLOCK, Snapshot};

/// What a store calls a block: of one tenant, with everything before it.
pub type StoredName = [u8; 32];

/// Blocks of a prompt that the prefix cache does not know and a store may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingBlocks {
    /// The block index of the first that has to be computed.
    pub first: usize,
    /// How many block indices there are from there on.
    pub num_indices: usize,
    /// The number of the first of `names`.
    pub number: usize,
    pub names: Vec<StoredName>,
    /// The name of the recurrent state behind the last block, if the model has states.
    pub state: Option<StoredName>,
}

/// What a store has, by the names of blocks and of recurrent states.
pub trait Stored {
    fn has_block(&self, name: &StoredName) -> bool;

    /// All of a state: a part is of no use.
    fn has_state(&self, name: &StoredName) -> bool;
}

/// What was filled from outside for a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Inserted {
    /// The block index from which on it lacked blocks.
    pub(crate) first: usize,
    /// The block index behind those that it lacked.
    pub(crate) wanted: usize,
    /// Block indices from there on that are known for this reason.
    pub(crate) num_indices: usize,
    /// The index behind the last of these.
    end: usize,
}

impl Inserted {
    /// Nothing, for a request that lacks these blocks.
    pub(crate) fn of(missing: &MissingBlocks) -> Self {
        Self {
            first: missing.first,
            wanted: missing.first + missing.num_indices,
            num_indices: 0,
            end: 0,
        }
    }

    /// A block at an index is filled; with it come the indices before `first_kept`, which no window sees.
    pub(crate) fn fill(&mut self, block_index: usize, first_kept: usize) {
        if block_index < self.end {
            return;
        }
        if self.num_indices == 0 {
            self.num_indices = first_kept.saturating_sub(self.first);
        }
        self.num_indices += 1;
        self.end = block_index + 1;
    }
}

/// A block that can be found, and was computed or found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUse {
    pub block: BlockId,
    pub name: StoredName,
    /// Its KV group.
    pub group: usize,
    /// A request found it in the prefix cache.
    pub is_hit: bool,
}

/// A recurrent state behind a block that can be found: it was computed, or a request begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateUse {
    pub snapshot: Snapshot,
    pub name: StoredName,
    /// A request begins with it.
    pub is_hit: bool,
}

/// The uses that were not taken yet.
#[derive(Clone, Debug)]
pub(super) struct UseLog {
    key: [u8; 32],
    uses: Vec<BlockUse>,
    state_uses: Vec<StateUse>,
}

/// Stands for a state in its name, where a block has its KV group.
const STATE: usize = usize::MAX;

impl UseLog {
    fn name(&self, hash: &BlockHash, group: usize) -> StoredName {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(hash.bytes());
        if group > 0 {
            hasher.update(&(group as u64).to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }
}

impl KvCache {
    /// Tells of the uses of blocks from now on.
    pub(crate) fn track_uses(&mut self) {
        let key = self.prefix_cache.derived_key("chairlift stored blocks");
        self.uses = Some(Box::new(UseLog {
            key,
            uses: Vec::new(),
            state_uses: Vec::new(),
        }));
    }

    /// Moves the uses since the last call out.
    pub(crate) fn take_uses(&mut self) -> Vec<BlockUse> {
        let log = self.uses.as_mut();
        log.map(|log| std::mem::take(&mut log.uses))
            .unwrap_or_default()
    }

    /// Moves the uses of recurrent states since the last call out.
    pub(crate) fn take_state_uses(&mut self) -> Vec<StateUse> {
        let log = self.uses.as_mut();
        log.map(|log| std::mem::take(&mut log.state_uses))
            .unwrap_or_default()
    }

    /// The state behind a block can be found from now on, or a request begins with it.
    pub(super) fn note_state_use(&mut self, snapshot: Snapshot, hash: &BlockHash, is_hit: bool) {
        if let Some(log) = &mut self.uses {
            let name = log.name(hash, STATE);
            log.state_uses.push(StateUse {
                snapshot,
                name,
                is_hit,
            });
        }
    }

    /// A request has ended. Of the states of its answer, which took each other's place, the last one is told.
    pub(crate) fn note_last_state(&mut self, table: &BlockTable) {
        let (Some(hash), Some(snapshots)) = (table.last_saved, &self.snapshots) else {
            return;
        };
        if let Some(snapshot) = snapshots.find(&hash).filter(|_| table.is_stored) {
            self.note_state_use(snapshot, &hash, false);
        }
    }

    /// A block of a group can be found from now on, or was found.
    pub(super) fn note_use(
        &mut self,
        (group, block): (usize, BlockId),
        hash: &BlockHash,
        is_hit: bool,
    ) {
        if let Some(log) = &mut self.uses {
            let name = log.name(hash, group);
            log.uses.push(BlockUse {
                block,
                name,
                group,
                is_hit,
            });
        }
    }

    /// The full blocks of `tokens` from the block index `first` on, but that of the last token; none without a store.
    pub(crate) fn missing(
        &self,
        table: &mut BlockTable,
        tokens: &[i32],
        first: usize,
    ) -> MissingBlocks {
        let Some(log) = &self.uses else {
            return MissingBlocks::default();
        };
        let max_hits = (tokens.len() - 1) / self.block_size;
        self.extend_hashes(table, tokens, max_hits);
        self.named(log, table, first, max_hits)
    }

    /// The blocks from the block index `first` on of the longest beginning of `tokens` that a request could begin with if a
    /// store gave what it has; none if that is no longer than what is known, which ends at `first`.
    pub(crate) fn stored(
        &self,
        table: &mut BlockTable,
        tokens: &[i32],
        first: usize,
        store: &impl Stored,
    ) -> MissingBlocks {
        let Some(log) = &self.uses else {
            return MissingBlocks::default();
        };
        let max_hits = (tokens.len() - 1) / self.block_size;
        self.extend_hashes(table, tokens, max_hits);
        let is_known = |group, block_index| {
            if block_index < first {
                self.hit(table, tokens, group, block_index).is_some()
            } else {
                store.has_block(&log.name(&table.hashes[block_index], group))
            }
        };
        let has_state = |end: usize| {
            self.snapshots.is_none() || store.has_state(&log.name(&table.hashes[end - 1], STATE))
        };
        let mut longest = first;
        self.beginnings(max_hits, is_known, |end| {
            if end > first && has_state(end) {
                longest = end;
            }
        });
        if longest == first {
            return MissingBlocks::default();
        }
        self.named(log, table, first, longest)
    }

    /// Calls `visit` with each number of leading blocks, `max_hits` at most, of which all is known that later tokens see.
    pub(super) fn beginnings(
        &self,
        max_hits: usize,
        is_known: impl Fn(usize, usize) -> bool,
        mut visit: impl FnMut(usize),
    ) {
        // By group: how many blocks up to the one at hand are known without a gap.
        let mut known = vec![0; self.groups.len()];
        for block_index in 0..max_hits {
            let end = block_index + 1;
            let (mut suffices, mut may_follow) = (true, true);
            for (group, known) in known.iter_mut().enumerate() {
                let is_hit = is_known(group, block_index);
                *known = if is_hit { *known + 1 } else { 0 };
                suffices &= *known >= end - self.first_seen(group, end);
                may_follow &= is_hit || self.groups[group].kv.window.is_some();
            }
            if !may_follow {
                break;
            }
            if suffices {
                visit(end);
            }
        }
    }

    /// The blocks of a beginning of `end` blocks from the block index `first` on, and the state behind it.
    fn named(&self, log: &UseLog, table: &BlockTable, first: usize, end: usize) -> MissingBlocks {
        let number = self.numbered(end).take_while(|&(i, _)| i < first);
        let mut missing = MissingBlocks {
            first,
            num_indices: end.saturating_sub(first),
            number: number.count(),
            ..MissingBlocks::default()
        };
        for (block_index, group) in self.numbered(end).skip(missing.number) {
            let name = log.name(&table.hashes[block_index], group);
            missing.names.push(name);
        }
        if self.snapshots.is_some() && missing.num_indices > 0 {
            missing.state = Some(log.name(&table.hashes[end - 1], STATE));
        }
        missing
    }

    /// Block index and group of the blocks that are kept of a beginning of so many, by their numbers.
    fn numbered(&self, num_indices: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..num_indices).flat_map(move |block_index| {
            let groups = 0..self.groups.len();
            let kept =
                groups.filter(move |&group| block_index >= self.first_seen(group, num_indices));
            kept.map(move |group| (block_index, group))
        })
    }

    /// Makes free blocks known as those of the first `num_indices` of `tokens` from the number `first` on, `count` at most, so that
    /// they can be filled now; the null block stands for one that is known already. The blocks before them are used last, so that
    /// they stay longest. Also returns the block index of each.
    ///
    /// None while copies wait for a plan: they may read free blocks.
    pub(crate) fn insert(
        &mut self,
        table: &mut BlockTable,
        tokens: &[i32],
        num_indices: usize,
        (first, count): (usize, usize),
    ) -> Option<(Vec<BlockId>, Vec<usize>)> {
        if self.host.has_copies() || !self.copies.is_empty() || !self.copied.is_empty() {
            return None;
        }
        self.extend_hashes(table, tokens, num_indices);
        let numbered: Vec<_> = self.numbered(num_indices).take(first + count).collect();
        let (mut held, mut inserted, mut indices) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (block_index, group)) in numbered.into_iter().enumerate() {
            let known = self.hit(table, tokens, group, block_index);
            if let Some(block) = known {
                self.share(block, table.tenant);
                held.push(block);
            }
            if number < first {
                continue;
            }
            if known.is_some() {
                inserted.push(NULL_BLOCK);
                indices.push(block_index);
                continue;
            }
            // Nothing that is promised is lost: all are free again below.
            if self.pool.num_free() == 0 {
                break;
            }
            let block = self.allocate(table.tenant);
            self.publish_block((group, block), table, tokens, block_index);
            held.push(block);
            inserted.push(block);
            indices.push(block_index);
        }
        // The tail goes first, so that it is also evicted first.
        for block in held.into_iter().rev() {
            self.pool.release(block, false);
            let references = self.pool.num_references(block);
            self.map.release(block, references, true);
        }
        Some((inserted, indices))
    }

    /// Makes a snapshot known as the state behind so many blocks, so that it can be filled now.
    ///
    /// None if the state is known already, if the last of them is not, or if steps in flight write to all memory of snapshots.
    pub(crate) fn insert_state(
        &mut self,
        table: &BlockTable,
        num_indices: usize,
    ) -> Option<Snapshot> {
        let last = num_indices.checked_sub(1)?;
        let hash = table.hashes.get(last)?;
        let snapshots = self.snapshots.as_mut()?;
        if !self.prefix_cache.has_name(hash) || snapshots.find(hash).is_some() {
            return None;
        }
        let snapshot = snapshots.reserve()?;
        snapshots.publish(snapshot, *hash);
        Some(snapshot)
    }

    /// The first block index of a beginning of so many that is kept, in any group.
    pub(crate) fn first_kept(&self, num_indices: usize) -> usize {
        let groups = 0..self.groups.len();
        let first = groups
            .map(|group| self.first_seen(group, num_indices))
            .min();
        first.unwrap_or(0)
    }
}
