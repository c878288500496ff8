//! Blocks that a store outside of the pool keeps: what is used is told, and what was loaded is made known.
//!
//! ```text
//! publish, hit ---> uses ---> the engine copies the block to the store before a step writes anything
//! a request waits, held   ---> missing ---> the engine loads ---> insert: blocks that the prefix cache knows
//! ```
//!
//! A block goes by a keyed hash of its name, which is the same in the next process that has the same key. Models with one KV
//! group without a window have such a store: a block index is one block.

use super::{KvCache, block_table::BlockTable, prefix_cache::BlockHash};
use crate::ids::{BlockId, NULL_BLOCK};

/// What a store calls a block: of one tenant, with everything before it.
pub type StoredName = [u8; 32];

/// A block that can be found, and was computed or found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUse {
    pub block: BlockId,
    pub name: StoredName,
    /// A request found it in the prefix cache.
    pub is_hit: bool,
}

/// The uses that were not taken yet.
#[derive(Clone, Debug)]
pub(super) struct UseLog {
    key: [u8; 32],
    uses: Vec<BlockUse>,
}

impl UseLog {
    fn name(&self, hash: &BlockHash) -> StoredName {
        *blake3::keyed_hash(&self.key, hash.bytes()).as_bytes()
    }
}

impl KvCache {
    /// Tells of the uses of blocks from now on.
    pub(crate) fn track_uses(&mut self) {
        let key = self.prefix_cache.derived_key("chairlift stored blocks");
        let uses = Vec::new();
        self.uses = Some(Box::new(UseLog { key, uses }));
    }

    /// Moves the uses since the last call out.
    pub(crate) fn take_uses(&mut self) -> Vec<BlockUse> {
        let log = self.uses.as_mut();
        log.map(|log| std::mem::take(&mut log.uses))
            .unwrap_or_default()
    }

    /// A block can be found from now on, or was found.
    pub(super) fn note_use(&mut self, block: BlockId, hash: &BlockHash, is_hit: bool) {
        if let Some(log) = &mut self.uses {
            let name = log.name(hash);
            log.uses.push(BlockUse {
                block,
                name,
                is_hit,
            });
        }
    }

    /// The names of the full blocks of `tokens` behind the first `num_hits`, but the last token; none without a store.
    pub(crate) fn missing(
        &self,
        table: &mut BlockTable,
        tokens: &[i32],
        num_hits: usize,
    ) -> Vec<StoredName> {
        let Some(log) = &self.uses else {
            return Vec::new();
        };
        let max_hits = (tokens.len() - 1) / self.block_size;
        self.extend_hashes(table, tokens, max_hits);
        let hashes = table.hashes[num_hits..max_hits].iter();
        hashes.map(|hash| log.name(hash)).collect()
    }

    /// Makes free blocks known as those of `tokens` from `first` on, `count` at most, so that they can be filled now; the
    /// null block stands for one that is known already. The blocks before them are used last, so that they stay longest.
    ///
    /// None while copies wait for a plan: they may read free blocks.
    pub(crate) fn insert(
        &mut self,
        table: &mut BlockTable,
        tokens: &[i32],
        first: usize,
        count: usize,
    ) -> Option<Vec<BlockId>> {
        if self.host.has_copies() || !self.copies.is_empty() || !self.copied.is_empty() {
            return None;
        }
        let end = (first + count).min((tokens.len() - 1) / self.block_size);
        self.extend_hashes(table, tokens, end);
        let (mut held, mut inserted) = (Vec::new(), Vec::new());
        for block_index in 0..end {
            let known = self.hit(table, tokens, 0, block_index);
            if let Some(block) = known {
                self.share(block, table.tenant);
                held.push(block);
            }
            if block_index < first {
                continue;
            }
            if known.is_some() {
                inserted.push(NULL_BLOCK);
                continue;
            }
            // Nothing that is promised is lost: all are free again below.
            if self.pool.num_free() == 0 {
                break;
            }
            let block = self.allocate(table.tenant);
            self.publish_block((0, block), table, tokens, block_index);
            held.push(block);
            inserted.push(block);
        }
        // The tail goes first, so that it is also evicted first.
        for block in held.into_iter().rev() {
            self.pool.release(block, false);
            let references = self.pool.num_references(block);
            self.map.release(block, references, true);
        }
        Some(inserted)
    }
}
