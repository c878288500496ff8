//! Admission: the blocks that a request begins with, and the promise of the rest.
//!
//! ```text
//! new           [ known | known | promised ...                 ]   from the prefix cache, shared
//! swapped out   [ known | host  | host  | host, part | promised ]   `host` is copied back into a block of its own
//! ```

use std::collections::BTreeMap;

use super::{KvCache, block_table::BlockTable};
use crate::ids::{BlockId, HostBlock, NULL_BLOCK};

/// Where a block of a KV group comes from.
#[derive(Clone, Copy)]
enum Source {
    /// No later token sees it.
    Unseen,
    /// The prefix cache knows it.
    Known(BlockId),
    Host(HostBlock),
}

/// The blocks that a request begins with; of each its KV groups, one after another.
struct Start {
    num_indices: usize,
    sources: Vec<Source>,
}

impl Start {
    fn known(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.sources.iter().filter_map(|source| match source {
            Source::Known(block) => Some(*block),
            _ => None,
        })
    }
}

impl KvCache {
    /// Computed tokens with which a request begins whose first `num_hits` blocks the prefix cache knows.
    pub(crate) fn start(&self, table: &BlockTable, num_hits: usize) -> usize {
        table.swapped.num_tokens.max(num_hits * self.block_size)
    }

    /// Gives an empty table the blocks that are computed, known or in host memory, and the promise of the rest; false
    /// (and nothing changed) if the blocks of all `tokens`, and `headroom` beside them, cannot be had.
    pub(crate) fn admit(
        &mut self,
        table: &mut BlockTable,
        tokens: &[i32],
        num_hits: usize,
        headroom: usize,
    ) -> bool {
        debug_assert_eq!(
            table.num_indices(),
            0,
            "an admitted request starts without blocks"
        );
        let start = self.beginning(table, tokens, num_hits);
        let promise = self.promise(&start, tokens.len());
        if promise + self.num_taken(&start) + headroom > self.num_available() {
            return false;
        }
        // Before anything is allocated, which takes blocks without owners.
        start
            .known()
            .for_each(|block| self.share(block, table.tenant));
        for (i, &source) in start.sources.iter().enumerate() {
            let block = match source {
                Source::Unseen => NULL_BLOCK,
                Source::Known(block) => {
                    if table.is_stored {
                        let (block_index, group) = (i / self.groups.len(), i % self.groups.len());
                        self.note_use((group, block), &table.hashes[block_index], true);
                    }
                    block
                }
                Source::Host(host) => {
                    let block = self.allocate(table.tenant);
                    self.host.copy_in(host, block);
                    block
                }
            };
            let group_blocks = &mut table.groups[i % self.groups.len()];
            group_blocks.num_freed += usize::from(block == NULL_BLOCK);
            group_blocks.blocks.push(block);
        }
        let is_known = |source: &Source| !matches!(source, Source::Host(_));
        let sources = start.sources.chunks(self.groups.len());
        table.num_published = sources
            .take_while(|of_groups| of_groups.iter().all(is_known))
            .count();
        table.num_indices = start.num_indices;
        table.is_dirty = true;
        table.promised = promise;
        self.promised += promise;
        self.forget_swapped(table);
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
        let start = self.beginning(table, tokens, num_hits);
        let needed = self.promise(&start, tokens.len()) + self.num_taken(&start) + headroom;
        let mut available = self.num_available();
        // Owners that stay. A hit gets the new owner, too: it cannot be had twice.
        let mut owners: BTreeMap<BlockId, u32> = BTreeMap::new();
        for block in start.known() {
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

    /// What is in host memory, unless the cache knows as much; the first `num_hits` blocks were looked up before.
    fn beginning(&self, table: &BlockTable, tokens: &[i32], num_hits: usize) -> Start {
        let num_computed = self.start(table, num_hits);
        let num_indices = num_computed.div_ceil(self.block_size);
        let mut sources = Vec::with_capacity(num_indices * self.groups.len());
        for block_index in 0..num_indices {
            for (group, group_blocks) in self.groups.iter().enumerate() {
                let is_seen =
                    block_index >= group_blocks.kv.first_index(num_computed, self.block_size);
                let hit = || self.hit(table, tokens, group, block_index);
                let known = (is_seen && block_index < num_hits).then(hit).flatten();
                sources.push(match known {
                    Some(block) => Source::Known(block),
                    None if is_seen => Source::Host(table.swapped.block(group, block_index)),
                    None => Source::Unseen,
                });
            }
        }
        Start {
            num_indices,
            sources,
        }
    }

    /// Blocks that a request needs for so many tokens beside those that it begins with, at a time.
    fn promise(&self, start: &Start, num_tokens: usize) -> usize {
        let left = num_tokens.div_ceil(self.block_size) - start.num_indices;
        let needed = |group: usize| {
            let mine = start.sources.iter().skip(group).step_by(self.groups.len());
            let num_held = mine
                .filter(|source| !matches!(source, Source::Unseen))
                .count();
            left.min(self.groups[group].max_blocks - num_held)
        };
        (0..self.groups.len()).map(needed).sum()
    }

    /// Free blocks that it begins with: new ones, and known ones without owners.
    fn num_taken(&self, start: &Start) -> usize {
        let is_taken = |source: &&Source| match **source {
            Source::Unseen => false,
            Source::Known(block) => self.pool.num_references(block) == 0,
            Source::Host(_) => true,
        };
        start.sources.iter().filter(is_taken).count()
    }
}
