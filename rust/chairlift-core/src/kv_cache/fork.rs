//! Sequences that share the blocks of their prompt, and copy the last of them before they write to it.

use super::{KvCache, block_table::BlockTable};
use crate::ids::{BlockId, NULL_BLOCK};

impl KvCache {
    /// Gives an empty table the blocks of another for the first `num_tokens` tokens, which are written. It owns them too;
    /// a block that is not full is copied when it is first written.
    pub(crate) fn fork(&mut self, from: &BlockTable, table: &mut BlockTable, num_tokens: usize) {
        debug_assert_eq!(table.num_indices(), 0, "a sibling starts without blocks");
        let num_indices = num_tokens.div_ceil(self.block_size);
        let groups = self.groups.iter().zip(&from.groups);
        for (group_blocks, (group, from)) in table.groups.iter_mut().zip(groups) {
            group_blocks.num_freed = group.kv.first_index(num_tokens, self.block_size);
            group_blocks
                .blocks
                .resize(group_blocks.num_freed, NULL_BLOCK);
            for &block in &from.blocks[group_blocks.num_freed..num_indices] {
                self.pool.share(block);
                let references = self.pool.num_references(block);
                self.map.hold(block, references, table.tenant);
                group_blocks.blocks.push(block);
            }
        }
        let num_full = num_tokens / self.block_size;
        table.hashes.clone_from(&from.hashes);
        table.num_indices = num_indices;
        table.num_published = from.num_published.min(num_full);
        table.shares_tail = num_indices > num_full;
    }

    /// Tables that own a block.
    pub(super) fn num_owners(&self, block: BlockId) -> u32 {
        let copies = self.copied.iter().filter(|&&source| source == block);
        self.pool.num_references(block) - copies.count() as u32
    }

    /// Others own the last block, too.
    pub(crate) fn is_tail_shared(&self, table: &BlockTable) -> bool {
        let mut tail = table.shared_tail();
        tail.any(|block| self.pool.num_references(block) > 1)
    }

    /// The only owner of the last block keeps it; until it is written again the cache does not know it.
    pub(super) fn copy_tail(&mut self, table: &mut BlockTable) {
        for group_blocks in &mut table.groups {
            let tail = group_blocks.blocks.last_mut();
            let tail = tail.expect("invariant: a shared block is there");
            if self.num_owners(*tail) > 1 {
                let source = std::mem::replace(tail, NULL_BLOCK);
                *tail = self.allocate(table.tenant);
                self.copies.push((source, *tail));
                self.copied.push(source);
            } else {
                self.forget(*tail);
            }
        }
    }

    /// The plan has all of its copies: their sources have no owners but tables.
    pub(crate) fn release_copied(&mut self) {
        for source in self.copied.drain(..) {
            self.pool.release(source, false);
            let references = self.pool.num_references(source);
            let is_published = self.prefix_cache.is_published(source);
            self.map.release(source, references, is_published);
        }
    }

    /// The copies since the last call: source and target.
    pub(crate) fn take_copies(&mut self) -> impl Iterator<Item = (BlockId, BlockId)> + '_ {
        self.copies.drain(..)
    }
}
