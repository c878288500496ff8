//! The invariants of the KV memory, executable.

use super::{KvCache, block_table::BlockTable};
use crate::{
    error::{Violation, ensure},
    ids::{BlockId, NULL_BLOCK, Snapshot},
};

/// A block table and what its owner has computed.
#[derive(Clone, Copy)]
pub(crate) struct TableUse<'a> {
    /// Id of the owner, for messages.
    pub(crate) id: u64,
    pub(crate) table: &'a BlockTable,
    pub(crate) num_computed: usize,
    pub(crate) num_tokens: usize,
    /// No step in flight may write to it.
    pub(crate) is_settled: bool,
}

impl KvCache {
    /// The pool, the cache and the tables agree; steps in flight write the states `written`.
    pub(crate) fn check_invariants<'a>(
        &self,
        uses: impl Iterator<Item = TableUse<'a>>,
        written: impl Iterator<Item = Snapshot>,
    ) -> Result<(), Violation> {
        self.pool.check_invariants()?;
        self.prefix_cache.check_invariants()?;
        if let Some(log) = &self.log {
            log.check_invariants(&self.prefix_cache)?;
        }
        if let Some(snapshots) = &self.snapshots {
            snapshots.check_invariants(written, |hash| self.prefix_cache.has_name(hash))?;
        }
        let uses: Vec<_> = uses.collect();
        self.check_uses(&uses)?;
        let tables: Vec<_> = uses.iter().map(|table_use| table_use.table).collect();
        self.check_host(tables.iter().copied())?;
        let mut references = vec![0; self.pool.num_blocks() + 1];
        let mut promised = 0;
        for &table in &tables {
            table
                .blocks()
                .for_each(|block| references[block as usize] += 1);
            promised += table.promised;
            for (group, group_blocks) in self.groups.iter().zip(&table.groups) {
                ensure!(
                    group_blocks.blocks.len() == table.num_indices(),
                    "the KV groups of a request have different blocks"
                );
                let freed = group_blocks.blocks.iter().map(|&block| block == NULL_BLOCK);
                ensure!(
                    freed
                        .enumerate()
                        .all(|(i, freed)| freed == (i < group_blocks.num_freed)),
                    "a request holds blocks behind its window, or lacks some before it"
                );
                ensure!(
                    group_blocks.num_held() <= group.max_blocks,
                    "a request holds {} blocks of a window, at most {} can be in use",
                    group_blocks.num_held(),
                    group.max_blocks
                );
            }
        }
        for (block, &owners) in references.iter().enumerate() {
            let counted = self.pool.num_references(block as BlockId);
            ensure!(
                counted == owners,
                "block {block}: {counted} references, {owners} in tables"
            );
        }
        let owners = tables.iter().flat_map(|table| {
            let blocks = table.blocks();
            blocks.map(|block| (block, table.tenant))
        });
        let is_published = |block| self.prefix_cache.is_published(block);
        self.map
            .check_invariants(&references, is_published, owners)?;
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

    /// Each table has the blocks of what is computed, and none that it writes to is another's.
    fn check_uses(&self, uses: &[TableUse<'_>]) -> Result<(), Violation> {
        // Owners that will copy a block before they write to it.
        let mut copying = vec![0; self.pool.num_blocks() + 1];
        for block in uses.iter().flat_map(|owner| owner.table.shared_tail()) {
            copying[block as usize] += 1;
        }
        for owner in uses {
            let (id, table, num_computed) = (owner.id, owner.table, owner.num_computed);
            let num_indices = table.num_indices();
            ensure!(
                num_indices * self.block_size >= num_computed,
                "request {id} has too few blocks"
            );
            ensure!(
                !owner.is_settled || num_indices == num_computed.div_ceil(self.block_size),
                "request {id} has {num_indices} blocks for {num_computed} tokens"
            );
            let outstanding = self.outstanding(table, owner.num_tokens);
            ensure!(
                table.promised <= outstanding,
                "request {id} is promised {} blocks and needs {outstanding}",
                table.promised
            );
            // Only full blocks are shared: a block is written by its only owner.
            for block_index in num_computed / self.block_size..num_indices {
                for group in 0..self.num_groups() {
                    let block = table.block(group, block_index);
                    let owners = self.pool.num_references(block);
                    // Owners that copy a block before they write to it read what is written already.
                    ensure!(
                        table.shares_tail || owners == 1 + copying[block as usize],
                        "request {id} writes to a block with {owners} owners"
                    );
                }
            }
        }
        Ok(())
    }
}
