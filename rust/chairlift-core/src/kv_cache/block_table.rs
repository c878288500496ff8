//! The blocks of one request.
//!
//! Every KV group has a block for each index: the one at index `i` holds tokens `[i * block_size, (i + 1) * block_size)`. What is wholly
//! behind the window of every later token is given back while the request runs:
//!
//! ```text
//! block index         0      1      2      3      4      5
//! group without      [ hit  | hit  | own  | own  |......|......]
//! group with window  [ null | null | own  | own  |......|......]
//!                      shared, full  written       promised
//! ```

use super::{block_log::Source, prefix_cache::BlockHash};
use crate::ids::{BlockId, HostBlock, NULL_BLOCK, Snapshot, Tenant};

/// The blocks of one KV group.
#[derive(Clone, Debug, Default)]
pub(super) struct GroupBlocks {
    pub(super) blocks: Vec<BlockId>,
    /// Leading indices whose blocks were given back: the null block is there.
    pub(super) num_freed: usize,
    /// Leading ones of these that the runner knows of.
    num_freed_reported: usize,
}

impl GroupBlocks {
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
    pub(super) num_indices: usize,
    /// The last blocks of each KV group; the blocks before them are outside its window.
    pub(super) groups: Vec<Vec<HostBlock>>,
}

impl Swapped {
    pub(super) fn block(&self, group: usize, block_index: usize) -> HostBlock {
        let blocks = &self.groups[group];
        blocks[block_index + blocks.len() - self.num_indices]
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = HostBlock> + '_ {
        self.groups.iter().flatten().copied()
    }
}

#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct BlockTable {
    // A decode step reads these four of every table, and touches the others of few.
    pub(super) num_indices: usize,
    /// Leading blocks that were hits or have been published.
    pub(super) num_published: usize,
    /// The runner does not know all.
    pub(super) is_dirty: bool,
    /// Others own its last block, too: it is copied before this request writes to it.
    pub(super) shares_tail: bool,
    /// Blocks that the runner knows of.
    num_reported: usize,
    pub(super) groups: Vec<GroupBlocks>,
    /// Names of the full blocks known so far; kept when the blocks are released, since tokens never change.
    pub(super) hashes: Vec<BlockHash>,
    root: BlockHash,
    /// What is told of blocks that it publishes.
    pub(super) source: Option<Source>,
    /// A store may keep its blocks.
    pub(super) is_stored: bool,
    /// Whose its blocks are.
    pub(super) tenant: Tenant,
    /// Blocks that this request may still allocate without asking.
    pub(super) promised: usize,
    /// What was computed before it lost its blocks.
    pub(super) swapped: Swapped,
    /// The snapshot of the state behind the blocks that were looked up last, if the model is a hybrid.
    pub(super) snapshot: Option<Snapshot>,
    /// Tokens whose blocks alone were known then; no more than have a snapshot is none.
    pub(super) junction: Option<usize>,
    /// The name of the last block of its output behind which a state was saved.
    pub(super) last_saved: Option<BlockHash>,
}

impl BlockTable {
    /// A table without blocks, with memory for `num_indices` of them in each group.
    pub(super) fn new(
        num_groups: usize,
        num_indices: usize,
        (root, source): (BlockHash, Option<Source>),
        tenant: Tenant,
    ) -> Self {
        let group_blocks = || GroupBlocks {
            blocks: Vec::with_capacity(num_indices),
            ..GroupBlocks::default()
        };
        Self {
            num_indices: 0,
            is_dirty: false,
            num_reported: 0,
            groups: (0..num_groups).map(|_| group_blocks()).collect(),
            hashes: Vec::with_capacity(num_indices),
            root,
            source,
            is_stored: false,
            tenant,
            num_published: 0,
            promised: 0,
            shares_tail: false,
            swapped: Swapped::default(),
            snapshot: None,
            junction: None,
            last_saved: None,
        }
    }

    /// Whether it has memory for so many blocks in each group.
    #[cfg(test)]
    pub(crate) fn has_room_for(&self, num_indices: usize) -> bool {
        let mut groups = self.groups.iter();
        groups.all(|group| group.blocks.capacity() >= num_indices)
            && self.hashes.capacity() >= num_indices
    }

    /// Takes memory for as many blocks as another table has memory for.
    pub(crate) fn reserve_as(&mut self, other: &Self) {
        for (group, other) in self.groups.iter_mut().zip(&other.groups) {
            let room = other.blocks.capacity().saturating_sub(group.blocks.len());
            group.blocks.reserve_exact(room);
        }
        let room = other.hashes.capacity().saturating_sub(self.hashes.len());
        self.hashes.reserve_exact(room);
    }

    /// Whether a store may have its blocks.
    pub(crate) fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// Tokens whose blocks the prefix cache knew without a state behind them.
    pub(crate) fn junction(&self) -> Option<usize> {
        self.junction
    }

    pub(crate) fn num_indices(&self) -> usize {
        self.num_indices
    }

    /// The block at an index; the null block where it was given back.
    pub(super) fn block(&self, group: usize, block_index: usize) -> BlockId {
        self.groups[group].blocks[block_index]
    }

    /// What the request owns.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let groups = self.groups.iter();
        groups.flat_map(|group_blocks| {
            group_blocks.blocks[group_blocks.num_freed..]
                .iter()
                .copied()
        })
    }

    /// The blocks that are copied before this request writes to them, if others still own them.
    pub(super) fn shared_tail(&self) -> impl Iterator<Item = BlockId> + '_ {
        let tails = self
            .groups
            .iter()
            .filter_map(|group_blocks| group_blocks.blocks.last());
        tails.copied().filter(|_| self.shares_tail)
    }

    /// Whether it owns nothing, and nothing is promised to it.
    pub(crate) fn is_empty(&self) -> bool {
        self.num_indices == 0 && self.promised == 0
    }

    /// Computed tokens that are in host memory.
    pub(crate) fn num_swapped_tokens(&self) -> usize {
        self.swapped.num_tokens
    }

    /// The name of the block before an index.
    pub(super) fn parent(&self, block_index: usize) -> BlockHash {
        if block_index == 0 {
            self.root
        } else {
            self.hashes[block_index - 1]
        }
    }

    /// Calls `update(group, block_index, block)` for all that has changed since the last time.
    pub(crate) fn take_updates(&mut self, mut update: impl FnMut(usize, usize, BlockId)) {
        if !std::mem::take(&mut self.is_dirty) {
            return;
        }
        for (group, group_blocks) in self.groups.iter_mut().enumerate() {
            for block_index in
                group_blocks.num_freed_reported..group_blocks.num_freed.min(self.num_reported)
            {
                update(group, block_index, NULL_BLOCK);
            }
            group_blocks.num_freed_reported = group_blocks.num_freed;
        }
        for block_index in self.num_reported..self.num_indices {
            for (group, group_blocks) in self.groups.iter().enumerate() {
                update(group, block_index, group_blocks.blocks[block_index]);
            }
        }
        self.num_reported = self.num_indices;
    }

    /// Forgets the blocks behind the first so many; what they held has been given back.
    pub(super) fn cut(&mut self, num_indices: usize) {
        self.num_indices = num_indices;
        self.num_reported = self.num_reported.min(num_indices);
    }

    /// Forgets all blocks; what they held has been given back, or is in host memory.
    pub(super) fn clear(&mut self) {
        for group_blocks in &mut self.groups {
            group_blocks.blocks.clear();
            (group_blocks.num_freed, group_blocks.num_freed_reported) = (0, 0);
        }
        (self.num_indices, self.num_reported, self.num_published) = (0, 0, 0);
        self.shares_tail = false;
    }
}
