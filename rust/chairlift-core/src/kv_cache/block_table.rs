//! The blocks of one request.
//!
//! Every KV group has the same columns: column `c` holds tokens `[c * block_size, (c + 1) * block_size)`. What is wholly
//! behind the window of every later token is given back while the request runs:
//!
//! ```text
//! columns              0      1      2      3      4      5
//! group without      [ hit  | hit  | own  | own  |......|......]
//! group with window  [ null | null | own  | own  |......|......]
//!                      shared, full  written       promised
//! ```

use super::prefix_cache::BlockHash;
use crate::ids::{BlockId, HostBlock, NULL_BLOCK};

/// The columns of one KV group.
#[derive(Clone, Debug, Default)]
pub(super) struct Columns {
    pub(super) blocks: Vec<BlockId>,
    /// Leading columns that hold nothing any more: the null block.
    pub(super) num_freed: usize,
    /// Leading columns of these that the runner knows of.
    num_freed_reported: usize,
}

impl Columns {
    /// Blocks that the request owns in this group.
    pub(super) fn num_held(&self) -> usize {
        self.blocks.len() - self.num_freed
    }
}

/// What a request without blocks has in host memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Swapped {
    /// Its first so many tokens are computed.
    pub(super) num_tokens: usize,
    pub(super) num_columns: usize,
    /// Of each KV group the last columns: the others are behind its window.
    pub(super) groups: Vec<Vec<HostBlock>>,
}

impl Swapped {
    pub(super) fn block(&self, group: usize, column: usize) -> HostBlock {
        let blocks = &self.groups[group];
        blocks[column + blocks.len() - self.num_columns]
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = HostBlock> + '_ {
        self.groups.iter().flatten().copied()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct BlockTable {
    pub(super) num_columns: usize,
    /// The runner does not know all: a decode step asks every table, and touches few.
    pub(super) is_dirty: bool,
    /// Columns that the runner knows of.
    num_reported: usize,
    pub(super) groups: Vec<Columns>,
    /// Names of the full columns known so far; kept when the blocks are released, since tokens never change.
    pub(super) hashes: Vec<BlockHash>,
    root: BlockHash,
    /// Leading columns that were hits or have been published.
    pub(super) num_published: usize,
    /// Blocks that this request may still allocate without asking.
    pub(super) promised: usize,
    /// Others own its last column, too: it is copied before this request writes to it.
    pub(super) shares_tail: bool,
    /// What was computed before it lost its blocks.
    pub(super) swapped: Swapped,
}

impl BlockTable {
    /// No blocks, and memory for so many columns.
    pub(super) fn new(num_groups: usize, num_columns: usize, root: BlockHash) -> Self {
        let columns = || Columns {
            blocks: Vec::with_capacity(num_columns),
            ..Columns::default()
        };
        Self {
            num_columns: 0,
            is_dirty: false,
            num_reported: 0,
            groups: (0..num_groups).map(|_| columns()).collect(),
            hashes: Vec::with_capacity(num_columns),
            root,
            num_published: 0,
            promised: 0,
            shares_tail: false,
            swapped: Swapped::default(),
        }
    }

    pub(crate) fn num_columns(&self) -> usize {
        self.num_columns
    }

    /// The null block where the column holds nothing any more.
    pub(super) fn block(&self, group: usize, column: usize) -> BlockId {
        self.groups[group].blocks[column]
    }

    /// What the request owns.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let groups = self.groups.iter();
        groups.flat_map(|columns| columns.blocks[columns.num_freed..].iter().copied())
    }

    /// The blocks that are copied before this request writes to them, if others still own them.
    pub(super) fn shared_tail(&self) -> impl Iterator<Item = BlockId> + '_ {
        let tails = self
            .groups
            .iter()
            .filter_map(|columns| columns.blocks.last());
        tails.copied().filter(|_| self.shares_tail)
    }

    /// Whether it owns nothing, and nothing is promised to it.
    pub(crate) fn is_empty(&self) -> bool {
        self.num_columns == 0 && self.promised == 0
    }

    /// Computed tokens that are in host memory.
    pub(crate) fn num_swapped_tokens(&self) -> usize {
        self.swapped.num_tokens
    }

    /// The name of what comes before a column.
    pub(super) fn parent(&self, column: usize) -> BlockHash {
        if column == 0 {
            self.root
        } else {
            self.hashes[column - 1]
        }
    }

    /// Calls `update(group, column, block)` for all that has changed since the last time.
    pub(crate) fn take_updates(&mut self, mut update: impl FnMut(usize, usize, BlockId)) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        for (group, columns) in self.groups.iter_mut().enumerate() {
            for column in columns.num_freed_reported..columns.num_freed.min(self.num_reported) {
                update(group, column, NULL_BLOCK);
            }
            columns.num_freed_reported = columns.num_freed;
        }
        for column in self.num_reported..self.num_columns {
            for (group, columns) in self.groups.iter().enumerate() {
                update(group, column, columns.blocks[column]);
            }
        }
        self.num_reported = self.num_columns;
    }

    /// Forgets the columns behind the first so many; what they held has been given back.
    pub(super) fn cut(&mut self, num_columns: usize) {
        self.num_columns = num_columns;
        self.num_reported = self.num_reported.min(num_columns);
    }

    /// Forgets all columns; what they held has been given back, or is in host memory.
    pub(super) fn clear(&mut self) {
        for columns in &mut self.groups {
            columns.blocks.clear();
            (columns.num_freed, columns.num_freed_reported) = (0, 0);
        }
        (self.num_columns, self.num_reported, self.num_published) = (0, 0, 0);
        self.shares_tail = false;
    }
}
