//! The KV memory of requests: block tables over the pool, filled from the prefix cache where it can.
//!
//! A request is admitted only if the blocks of all its tokens can be had; they are *promised* then and allocated chunk
//! by chunk, so that a prefill cannot be robbed half-way and memory is in use only when it is about to be written:
//!
//! ```text
//! columns   0      1      2      3      4      5
//!         [ hit  | hit  | own  | own  |......|......]
//!          shared,        written       promised
//!          full           or being
//! ```
//!
//! Every KV group has a table with the same columns: column `c` holds tokens `[c * block_size, (c + 1) * block_size)`.

use std::collections::BTreeMap;

use crate::{
    block_pool::{BlockId, BlockPool},
    config::Config,
    error::{Violation, ensure},
    prefix_cache::{BlockHash, Namespace, PrefixCache},
};

/// The blocks of one request.
#[derive(Clone, Debug)]
pub(crate) struct BlockTable {
    num_columns: usize,
    /// `[num_kv_groups][num_columns]`.
    groups: Vec<Vec<BlockId>>,
    /// Names of the full columns known so far; kept when the blocks are released, since tokens never change.
    hashes: Vec<BlockHash>,
    root: BlockHash,
    /// Leading columns that were hits or have been published.
    num_published: usize,
    /// Blocks that this request may still allocate without asking.
    promised: usize,
}

impl BlockTable {
    pub(crate) fn num_columns(&self) -> usize {
        self.num_columns
    }

    pub(crate) fn block(&self, group: usize, column: usize) -> BlockId {
        self.groups[group][column]
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.groups.iter().flatten().copied()
    }

    pub(crate) fn promised(&self) -> usize {
        self.promised
    }

    fn parent(&self, column: usize) -> BlockHash {
        if column == 0 {
            self.root
        } else {
            self.hashes[column - 1]
        }
    }
}

/// The pool, what is known of its blocks, and what is promised.
#[derive(Clone, Debug)]
pub(crate) struct KvCache {
    pub(crate) pool: BlockPool,
    prefix_cache: PrefixCache,
    block_size: usize,
    num_groups: usize,
    promised: usize,
}

impl KvCache {
    pub(crate) fn new(config: &Config) -> Self {
        let num_groups = config.kv_groups.len();
        Self {
            pool: BlockPool::new(config.num_blocks),
            prefix_cache: PrefixCache::new(config.hash_key, num_groups, config.num_blocks),
            block_size: config.block_size,
            num_groups,
            promised: 0,
        }
    }

    /// An empty table with memory for the columns of `num_tokens`.
    pub(crate) fn new_table(&self, namespace: &Namespace, num_tokens: usize) -> BlockTable {
        let columns = num_tokens.div_ceil(self.block_size);
        BlockTable {
            num_columns: 0,
            groups: (0..self.num_groups)
                .map(|_| Vec::with_capacity(columns))
                .collect(),
            hashes: Vec::with_capacity(columns),
            root: self.prefix_cache.root(namespace),
            num_published: 0,
            promised: 0,
        }
    }

    /// Blocks that nobody uses and nobody was promised.
    fn num_available(&self) -> usize {
        self.pool.num_free() - self.promised
    }

    /// Leading columns of `tokens` that the cache knows. The last token is always computed: its logits are needed.
    pub(crate) fn lookup(&self, table: &mut BlockTable, tokens: &[i32]) -> usize {
        let most = (tokens.len() - 1) / self.block_size;
        self.extend_hashes(table, tokens, most);
        (0..most)
            .take_while(|&column| self.known(table, tokens, column))
            .count()
    }

    fn known(&self, table: &BlockTable, tokens: &[i32], column: usize) -> bool {
        (0..self.num_groups).all(|group| self.hit(table, tokens, group, column).is_some())
    }

    fn hit(
        &self,
        table: &BlockTable,
        tokens: &[i32],
        group: usize,
        column: usize,
    ) -> Option<BlockId> {
        let tokens = &tokens[column * self.block_size..(column + 1) * self.block_size];
        self.prefix_cache
            .lookup(group, table.hashes[column], table.parent(column), tokens)
    }

    fn extend_hashes(&self, table: &mut BlockTable, tokens: &[i32], num_columns: usize) {
        for column in table.hashes.len()..num_columns {
            let tokens = &tokens[column * self.block_size..(column + 1) * self.block_size];
            table
                .hashes
                .push(self.prefix_cache.hash(table.parent(column), tokens));
        }
    }

    /// Gives an empty table its `num_hits` known columns and the promise of the rest; false (and nothing changed) if
    /// the blocks of all `tokens`, and `headroom` beside them, cannot be had.
    pub(crate) fn admit(
        &mut self,
        table: &mut BlockTable,
        tokens: &[i32],
        num_hits: usize,
        headroom: usize,
    ) -> bool {
        debug_assert_eq!(
            table.num_columns(),
            0,
            "an admitted request starts without blocks"
        );
        let hits = self.hits(table, tokens, num_hits);
        let promise = self.promise(tokens, num_hits);
        let num_revived = self.num_revived(&hits);
        if promise + num_revived + headroom > self.num_available() {
            return false;
        }
        for (i, &block) in hits.iter().enumerate() {
            self.pool.share(block);
            table.groups[i % self.num_groups].push(block);
        }
        table.num_columns = num_hits;
        table.num_published = num_hits;
        table.promised = promise;
        self.promised += promise;
        true
    }

    /// How many of the tables must be released, in their order, before `admit` succeeds; `None`: all are not enough.
    pub(crate) fn num_releases<'a>(
        &self,
        table: &BlockTable,
        tokens: &[i32],
        num_hits: usize,
        headroom: usize,
        tables: impl Iterator<Item = &'a BlockTable>,
    ) -> Option<usize> {
        let hits = self.hits(table, tokens, num_hits);
        let needed = self.promise(tokens, num_hits) + self.num_revived(&hits) + headroom;
        let mut available = self.num_available();
        // Owners that stay. A hit has the one who asks, too: it cannot be had twice.
        let mut owners: BTreeMap<BlockId, u32> = BTreeMap::new();
        for &block in &hits {
            owners.insert(block, self.pool.num_references(block) + 1);
        }
        let mut num_releases = 0;
        for table in tables {
            if available >= needed {
                break;
            }
            available += table.promised;
            for block in table.blocks() {
                let left = owners
                    .entry(block)
                    .or_insert_with(|| self.pool.num_references(block));
                *left -= 1;
                available += usize::from(*left == 0);
            }
            num_releases += 1;
        }
        (available >= needed).then_some(num_releases)
    }

    /// The blocks of the first `num_hits` columns, which were looked up before.
    fn hits(&self, table: &BlockTable, tokens: &[i32], num_hits: usize) -> Vec<BlockId> {
        let mut hits = Vec::with_capacity(num_hits * self.num_groups);
        for column in 0..num_hits {
            for group in 0..self.num_groups {
                let block = self.hit(table, tokens, group, column);
                hits.push(block.expect("invariant: a looked-up column is known"));
            }
        }
        hits
    }

    /// Blocks that a request needs beside its hits.
    fn promise(&self, tokens: &[i32], num_hits: usize) -> usize {
        let columns = tokens.len().div_ceil(self.block_size);
        (columns - num_hits) * self.num_groups
    }

    /// Hits that are free: they will not be.
    fn num_revived(&self, hits: &[BlockId]) -> usize {
        let is_free = |&&block: &&BlockId| self.pool.num_references(block) == 0;
        hits.iter().filter(is_free).count()
    }

    /// Allocates columns until `num_tokens` fit; false (and nothing changed) if there is no room.
    pub(crate) fn grow(&mut self, table: &mut BlockTable, num_tokens: usize) -> bool {
        if num_tokens <= table.num_columns * self.block_size {
            return true;
        }
        let columns = num_tokens.div_ceil(self.block_size);
        let num_new = (columns - table.num_columns()) * self.num_groups;
        let from_promise = num_new.min(table.promised);
        if num_new - from_promise > self.num_available() {
            return false;
        }
        table.promised -= from_promise;
        self.promised -= from_promise;
        for _ in table.num_columns()..columns {
            for group in 0..self.num_groups {
                let block = self
                    .pool
                    .allocate()
                    .expect("invariant: available blocks are free");
                self.prefix_cache.evict(block);
                table.groups[group].push(block);
            }
        }
        table.num_columns = columns;
        true
    }

    /// Makes the full columns among the first `num_computed` tokens known to others.
    pub(crate) fn publish(&mut self, table: &mut BlockTable, tokens: &[i32], num_computed: usize) {
        if num_computed < (table.num_published + 1) * self.block_size {
            return;
        }
        let num_full = num_computed / self.block_size;
        self.extend_hashes(table, tokens, num_full);
        for column in table.num_published..num_full {
            let tokens = &tokens[column * self.block_size..(column + 1) * self.block_size];
            let (hash, parent) = (table.hashes[column], table.parent(column));
            for group in 0..self.num_groups {
                self.prefix_cache
                    .publish(group, table.block(group, column), hash, parent, tokens);
            }
        }
        table.num_published = num_full;
    }

    /// Gives back all blocks and promises. The tail goes first, so that it is also evicted first.
    pub(crate) fn release(&mut self, table: &mut BlockTable) {
        for column in (0..table.num_columns()).rev() {
            for group in 0..self.num_groups {
                let block = table.block(group, column);
                self.pool
                    .release(block, !self.prefix_cache.is_published(block));
            }
        }
        table.groups.iter_mut().for_each(Vec::clear);
        table.num_columns = 0;
        table.num_published = 0;
        self.promised -= table.promised;
        table.promised = 0;
    }

    /// Forgets up to `most` published blocks that nobody uses, the least recently used first; returns how many.
    pub(crate) fn evict_cached(&mut self, most: usize) -> usize {
        let is_cached = |&block: &BlockId| self.prefix_cache.is_published(block);
        let blocks: Vec<_> = self.pool.free().filter(is_cached).take(most).collect();
        for &block in &blocks {
            self.prefix_cache.evict(block);
        }
        blocks.len()
    }

    pub(crate) fn num_published(&self) -> usize {
        self.prefix_cache.num_published()
    }

    pub(crate) fn num_groups(&self) -> usize {
        self.num_groups
    }

    /// The pool, the cache and the tables agree.
    pub(crate) fn check_invariants<'a>(
        &self,
        tables: impl Iterator<Item = &'a BlockTable>,
    ) -> Result<(), Violation> {
        self.pool.check_invariants()?;
        self.prefix_cache.check_invariants()?;
        let mut references = vec![0; self.pool.num_blocks() + 1];
        let mut promised = 0;
        for table in tables {
            table
                .blocks()
                .for_each(|block| references[block as usize] += 1);
            promised += table.promised;
            let columns = table.num_columns();
            ensure!(
                table.groups.iter().all(|group| group.len() == columns),
                "the KV groups of a request have different columns"
            );
        }
        for (block, &owners) in references.iter().enumerate() {
            let counted = self.pool.num_references(block as BlockId);
            ensure!(
                counted == owners,
                "block {block}: {counted} references, {owners} in tables"
            );
        }
        ensure!(
            promised == self.promised,
            "{promised} blocks are promised, {} counted",
            self.promised
        );
        ensure!(
            self.promised <= self.pool.num_free(),
            "{} blocks are promised, {} are free",
            self.promised,
            self.pool.num_free()
        );
        Ok(())
    }
}
