//! The KV memory of requests: block tables over the pool, filled from the prefix cache where it can.
//!
//! A request is admitted only if the blocks of all its tokens can be had; they are *promised* then and allocated chunk
//! by chunk, so that a prefill does not run out of blocks half-way and memory is in use only when it is about to be written:
//!
//! ```text
//! block index 0       1      2      3      4      5
//!         [ hit  | hit  | own  | own  |......|......]
//!          shared,        written       promised
//!          full           or being
//! ```
//!
//! A KV group with a window gives back blocks that no later token sees, so that a request never holds more than
//! [`Config::max_blocks_of`] of it, however long it grows: no more is promised, and a hit needs no more.

mod admit;
mod block_log;
mod block_map;
mod block_pool;
mod block_table;
mod check;
mod fork;
mod index_list;
mod loaded;
mod prefix_cache;
mod snapshots;
mod swap;

use self::{
    block_log::BlockLog, block_map::BlockMap, block_pool::BlockPool, loaded::UseLog,
    prefix_cache::PrefixCache, snapshots::Snapshots, swap::HostPool,
};
pub use self::{
    block_log::{BlockEvent, BlockEventKind, BlockEvents},
    block_map::{CellUse, MAX_CELLS},
    loaded::{BlockUse, MissingBlocks, StateUse, Stored, StoredName},
    prefix_cache::{Adapter, Namespace},
};
pub(crate) use self::{block_table::BlockTable, check::TableUse, loaded::Inserted};
use crate::{
    config::{Config, KvGroup},
    ids::{BlockId, NULL_BLOCK, Tenant},
};

/// A KV group as the cache knows it.
#[derive(Clone, Copy, Debug)]
struct Group {
    kv: KvGroup,
    /// Blocks that a request holds of it at a time.
    max_blocks: usize,
}

/// The pool, what is known of its blocks, and what is promised.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    pool: BlockPool,
    map: BlockMap,
    prefix_cache: PrefixCache,
    /// What is told of it; None: nothing is. A pointer, since few servers have it.
    log: Option<Box<BlockLog>>,
    /// What a store outside of the pool may keep; None: there is none.
    uses: Option<Box<UseLog>>,
    block_size: usize,
    groups: Vec<Group>,
    has_windows: bool,
    promised: usize,
    /// Source and target of blocks that `grow` has copied.
    copies: Vec<(BlockId, BlockId)>,
    /// Sources of the copies of the plan at hand. Each copy owns its source until the plan is complete: a block that another
    /// owner gives back meanwhile would be written, by a swap or another copy, before this one has read it.
    copied: Vec<BlockId>,
    host: HostPool,
    /// Snapshots of recurrent states; None: the model has no such state.
    snapshots: Option<Snapshots>,
}

impl KvCache {
    pub(crate) fn new(config: &Config) -> Self {
        let groups = config.kv_groups.iter().map(|&kv| Group {
            kv,
            max_blocks: config.max_blocks_of(kv),
        });
        let num_groups = config.kv_groups.len();
        Self {
            pool: BlockPool::new(config.num_blocks),
            map: BlockMap::new(config.num_blocks),
            prefix_cache: PrefixCache::new(
                config.hash_key,
                num_groups,
                config.num_blocks,
                config.block_size,
            ),
            log: None,
            uses: None,
            block_size: config.block_size,
            groups: groups.collect(),
            has_windows: config.kv_groups.iter().any(|kv| kv.window.is_some()),
            promised: 0,
            copies: Vec::new(),
            copied: Vec::new(),
            host: HostPool::new(config.num_host_blocks),
            snapshots: config.state_snapshots.map(Snapshots::new),
        }
    }

    /// An empty table of a tenant with memory for the blocks of `num_tokens`.
    pub(crate) fn new_table(
        &self,
        namespace: &Namespace,
        tenant: Tenant,
        num_tokens: usize,
    ) -> BlockTable {
        let root = self.prefix_cache.root(namespace);
        let num_indices = num_tokens.div_ceil(self.block_size);
        let source = self.source(namespace);
        let mut table = BlockTable::new(self.groups.len(), num_indices, (root, source), tenant);
        // The number of an adapter's load means nothing to the next process.
        table.is_stored = self.uses.is_some() && namespace.adapter.slot == 0;
        table
    }

    /// How the blocks are used, by cells; the blocks of `tenant` are counted apart.
    pub(crate) fn block_map(&self, tenant: Option<Tenant>) -> Vec<CellUse> {
        self.map.cells(tenant)
    }

    /// Blocks that can be in use, and those that are not.
    pub(crate) fn num_blocks(&self) -> usize {
        self.pool.num_blocks()
    }

    pub(crate) fn num_free(&self) -> usize {
        self.pool.num_free()
    }

    /// Blocks that become available when a table is released.
    pub(crate) fn num_released(&self, table: &BlockTable) -> usize {
        let is_private = |&block: &BlockId| self.pool.num_references(block) == 1;
        table.blocks().filter(is_private).count() + table.promised
    }

    /// Blocks that are neither in use nor promised.
    fn num_available(&self) -> usize {
        self.pool.num_free() - self.promised
    }

    /// Leading blocks of `tokens` that need not be computed: the cache knows all that later tokens see of them, the
    /// recurrent state included. The last token is always computed: its logits are needed.
    pub(crate) fn lookup(&self, table: &mut BlockTable, tokens: &[i32]) -> usize {
        let max_hits = (tokens.len() - 1) / self.block_size;
        self.extend_hashes(table, tokens, max_hits);
        let (mut num_hits, mut num_known, mut found) = (0, 0, None);
        let is_hit = |group, block_index| self.hit(table, tokens, group, block_index).is_some();
        self.beginnings(max_hits, is_hit, |end| {
            num_known = end;
            let Some(snapshots) = &self.snapshots else {
                num_hits = end;
                return;
            };
            if let Some(snapshot) = snapshots.find(&table.hashes[end - 1]) {
                (num_hits, found) = (end, Some(snapshot));
            }
        });
        table.snapshot = found;
        table.junction = (num_known > num_hits).then_some(num_known * self.block_size);
        num_hits
    }

    /// The first block index of a group that tokens after `num_indices` blocks see.
    fn first_seen(&self, group: usize, num_indices: usize) -> usize {
        let group = &self.groups[group].kv;
        group.first_index(num_indices * self.block_size, self.block_size)
    }

    fn hit(
        &self,
        table: &BlockTable,
        tokens: &[i32],
        group: usize,
        block_index: usize,
    ) -> Option<BlockId> {
        let tokens = &tokens[block_index * self.block_size..(block_index + 1) * self.block_size];
        self.prefix_cache.lookup(
            group,
            table.hashes[block_index],
            table.parent(block_index),
            tokens,
        )
    }

    fn extend_hashes(&self, table: &mut BlockTable, tokens: &[i32], num_indices: usize) {
        for block_index in table.hashes.len()..num_indices {
            let tokens =
                &tokens[block_index * self.block_size..(block_index + 1) * self.block_size];
            table.hashes.push(table.parent(block_index).next(tokens));
        }
    }

    /// Blocks that one more token takes of a request without blocks that has so many.
    pub(crate) fn room_for_next(&self, num_tokens: usize) -> usize {
        self.whole(num_tokens + 1) - self.whole(num_tokens)
    }

    /// Blocks that a request without blocks needs for so many tokens, at a time.
    fn whole(&self, num_tokens: usize) -> usize {
        let num_indices = num_tokens.div_ceil(self.block_size);
        self.groups
            .iter()
            .map(|group| num_indices.min(group.max_blocks))
            .sum()
    }

    /// Blocks that a table may still need for so many tokens, at a time.
    pub(crate) fn outstanding(&self, table: &BlockTable, num_tokens: usize) -> usize {
        let left = num_tokens.div_ceil(self.block_size);
        let left = left.saturating_sub(table.num_indices());
        let groups = self.groups.iter().zip(&table.groups);
        groups
            .map(|(group, group_blocks)| left.min(group.max_blocks - group_blocks.num_held()))
            .sum()
    }

    /// Allocates blocks until `num_tokens` fit, and the last block anew where others own it too; false (and nothing
    /// changed) if there is no room.
    pub(crate) fn grow(&mut self, table: &mut BlockTable, num_tokens: usize) -> bool {
        let fits = num_tokens <= table.num_indices * self.block_size;
        (fits && !table.shares_tail) || self.allocate_blocks(table, num_tokens)
    }

    // Not inlined, so that the check of nearly every step is a comparison in the scheduler's loop.
    #[cold]
    fn allocate_blocks(&mut self, table: &mut BlockTable, num_tokens: usize) -> bool {
        let num_indices = num_tokens.div_ceil(self.block_size);
        let is_shared = |block: &BlockId| self.num_owners(*block) > 1;
        let num_copies = table.shared_tail().filter(is_shared).count();
        let num_new = (num_indices - table.num_indices()) * self.groups.len() + num_copies;
        let from_promise = num_new.min(table.promised);
        if num_new - from_promise > self.num_available() {
            return false;
        }
        table.promised -= from_promise;
        self.promised -= from_promise;
        if std::mem::take(&mut table.shares_tail) {
            self.copy_tail(table);
        }
        for _ in table.num_indices()..num_indices {
            for group in 0..self.groups.len() {
                let block = self.allocate(table.tenant);
                table.groups[group].blocks.push(block);
            }
        }
        table.num_indices = num_indices;
        table.is_dirty = true;
        true
    }

    /// Whether `num_tokens` fit: in the blocks that the table has, or in more that leave `headroom` blocks to others; with
    /// None it may not grow.
    pub(crate) fn has_room(
        &self,
        table: &BlockTable,
        num_tokens: usize,
        headroom: Option<usize>,
    ) -> bool {
        let num_indices = num_tokens.div_ceil(self.block_size);
        let num_new = num_indices.saturating_sub(table.num_indices()) * self.groups.len();
        let fits = |headroom| num_new + headroom <= self.num_available() + table.promised;
        num_new == 0 || headroom.is_some_and(fits)
    }

    /// Gives back the blocks behind those of the first `num_tokens` tokens: none of them is known to others.
    pub(crate) fn shrink(&mut self, table: &mut BlockTable, num_tokens: usize) {
        let num_indices = num_tokens.div_ceil(self.block_size);
        for group_blocks in &mut table.groups {
            for block in group_blocks.blocks.drain(num_indices..) {
                self.pool.release(block, true);
                let references = self.pool.num_references(block);
                self.map.release(block, references, false);
            }
        }
        table.cut(num_indices);
    }

    fn allocate(&mut self, tenant: Tenant) -> BlockId {
        let block = self.pool.allocate();
        let block = block.expect("invariant: available blocks are free");
        self.forget(block);
        self.map.hold(block, 1, tenant);
        block
    }

    /// One more table of a tenant owns a block.
    fn share(&mut self, block: BlockId, tenant: Tenant) {
        self.pool.share(block);
        let references = self.pool.num_references(block);
        self.map.hold(block, references, tenant);
    }

    /// A block is not found any more, nor the state behind it.
    fn forget(&mut self, block: BlockId) {
        self.report_removed(block);
        if let Some(hash) = self.prefix_cache.evict(block)
            && let Some(snapshots) = &mut self.snapshots
        {
            snapshots.forget(&hash);
        }
        if self.pool.num_references(block) == 0 {
            self.map.release(block, 0, false);
        }
    }

    /// Makes the full blocks among the first `num_computed` tokens known to others.
    pub(crate) fn publish(&mut self, table: &mut BlockTable, tokens: &[i32], num_computed: usize) {
        if num_computed >= (table.num_published + 1) * self.block_size {
            self.publish_blocks(table, tokens, num_computed);
        }
    }

    #[cold]
    fn publish_blocks(&mut self, table: &mut BlockTable, tokens: &[i32], num_computed: usize) {
        let num_full = num_computed / self.block_size;
        self.extend_hashes(table, tokens, num_full);
        for block_index in table.num_published..num_full {
            for group in 0..self.groups.len() {
                let block = table.block(group, block_index);
                // Nothing that came back from host memory is behind a window.
                if block == NULL_BLOCK {
                    continue;
                }
                let is_new = self.publish_block((group, block), table, tokens, block_index);
                // An equal one may be known: where the window or the state before it was lost, all is computed again.
                let is_repeated = self.has_windows || self.snapshots.is_some();
                if table.is_stored && (is_new || is_repeated) {
                    self.note_use((group, block), &table.hashes[block_index], false);
                }
            }
        }
        table.num_published = num_full;
    }

    /// Makes a block known as that of a group at an index; false if it is already, or an equal one.
    fn publish_block(
        &mut self,
        (group, block): (usize, BlockId),
        table: &BlockTable,
        tokens: &[i32],
        block_index: usize,
    ) -> bool {
        let tokens = &tokens[block_index * self.block_size..(block_index + 1) * self.block_size];
        let (hash, parent) = (table.hashes[block_index], table.parent(block_index));
        let is_new = self
            .prefix_cache
            .publish(group, block, hash, parent, tokens);
        if is_new {
            let parent = (block_index > 0).then_some(parent);
            self.report_stored((group, block), table.source, hash, parent, tokens);
        }
        is_new
    }

    /// Gives back the blocks that no token of `tokens` from `num_computed` on sees. What becomes free is promised again
    /// as far as the request needs it.
    pub(crate) fn trim(&mut self, table: &mut BlockTable, num_tokens: usize, num_computed: usize) {
        if self.has_windows {
            self.free_behind_windows(table, num_tokens, num_computed);
        }
    }

    #[cold]
    fn free_behind_windows(
        &mut self,
        table: &mut BlockTable,
        num_tokens: usize,
        num_computed: usize,
    ) {
        let mut num_free = 0;
        for (group, group_blocks) in self.groups.iter().zip(&mut table.groups) {
            let first = group.kv.first_index(num_computed, self.block_size);
            while group_blocks.num_freed < first {
                let block_index = &mut group_blocks.blocks[group_blocks.num_freed];
                let block = std::mem::replace(block_index, NULL_BLOCK);
                group_blocks.num_freed += 1;
                table.is_dirty = true;
                let is_published = self.prefix_cache.is_published(block);
                self.pool.release(block, !is_published);
                let references = self.pool.num_references(block);
                self.map.release(block, references, is_published);
                num_free += usize::from(references == 0);
            }
        }
        let missing = self.outstanding(table, num_tokens) - table.promised;
        let promise = missing.min(num_free);
        table.promised += promise;
        self.promised += promise;
    }

    /// Gives back all blocks and promises. The tail goes first, so that it is also evicted first.
    pub(crate) fn release(&mut self, table: &mut BlockTable) {
        for block_index in (0..table.num_indices()).rev() {
            for group_blocks in &table.groups {
                if block_index >= group_blocks.num_freed {
                    let block = group_blocks.blocks[block_index];
                    let is_published = self.prefix_cache.is_published(block);
                    self.pool.release(block, !is_published);
                    let references = self.pool.num_references(block);
                    self.map.release(block, references, is_published);
                }
            }
        }
        table.clear();
        self.promised -= table.promised;
        table.promised = 0;
    }

    /// Forgets up to `max` published blocks that are not in use, the least recently used first; returns how many.
    pub(crate) fn evict_cached(&mut self, max: usize) -> usize {
        let is_cached = |&block: &BlockId| self.prefix_cache.is_published(block);
        let blocks: Vec<_> = self.pool.free().filter(is_cached).take(max).collect();
        for &block in &blocks {
            self.forget(block);
        }
        blocks.len()
    }

    pub(crate) fn num_published(&self) -> usize {
        self.prefix_cache.num_published()
    }

    pub(crate) fn num_groups(&self) -> usize {
        self.groups.len()
    }
}
