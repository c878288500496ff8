//! The invariants of the KV memory, executable.

use super::KvCache;
use crate::{
    block_pool::{BlockId, NULL_BLOCK},
    block_table::BlockTable,
    error::{Violation, ensure},
};

impl KvCache {
    /// The pool, the cache and the tables agree.
    pub(crate) fn check_invariants<'a>(
        &self,
        tables: impl Iterator<Item = &'a BlockTable>,
    ) -> Result<(), Violation> {
        self.pool.check_invariants()?;
        self.prefix_cache.check_invariants()?;
        let tables: Vec<_> = tables.collect();
        self.check_host(tables.iter().copied())?;
        let mut references = vec![0; self.pool.num_blocks() + 1];
        let mut promised = 0;
        for table in tables {
            table
                .blocks()
                .for_each(|block| references[block as usize] += 1);
            promised += table.promised;
            for (group, columns) in self.groups.iter().zip(&table.groups) {
                ensure!(
                    columns.blocks.len() == table.num_columns(),
                    "the KV groups of a request have different columns"
                );
                let freed = columns.blocks.iter().map(|&block| block == NULL_BLOCK);
                ensure!(
                    freed
                        .enumerate()
                        .all(|(i, freed)| freed == (i < columns.num_freed)),
                    "a request holds blocks behind its window, or lacks some before it"
                );
                ensure!(
                    columns.num_held() <= group.most,
                    "a request holds {} blocks of a window, at most {} can be in use",
                    columns.num_held(),
                    group.most
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
