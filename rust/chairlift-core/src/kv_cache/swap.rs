//! Blocks of preempted requests in host memory, so that they need not be computed again (vLLM, SOSP '23, 4.5).
//!
//! ```text
//! device   [ 5 | 6 | 7 | 8, part ]   preempted: copied out (`swap_out` of the plan), then given back
//! host     [ 0 | 3 | 1 | 2, part ]   while it waits
//! device   [ 9 | 4 | 5 | 6, part ]   resumes: copied back (`swap_in`), and goes on where it was
//! ```
//!
//! A plan's copies run in this order: all that go out, all that come in, and only then anything is written. So a block may
//! be given out again in the same plan. A host block may not: the copies of one direction run in any order.

use std::vec::Drain;

use super::{
    KvCache,
    block_table::{BlockTable, Swapped},
};
use crate::{
    error::{Violation, ensure},
    ids::{BlockId, HostBlock},
};

/// The host's pool, and copies that no plan has yet.
#[derive(Clone, Debug)]
pub(super) struct HostPool {
    num_blocks: usize,
    free: Vec<HostBlock>,
    /// Free once a plan has the copies.
    returned: Vec<HostBlock>,
    /// Source and target.
    outs: Vec<(BlockId, HostBlock)>,
    ins: Vec<(HostBlock, BlockId)>,
}

impl HostPool {
    pub(super) fn new(num_blocks: usize) -> Self {
        Self {
            num_blocks,
            free: (0..num_blocks as HostBlock).rev().collect(),
            returned: Vec::new(),
            outs: Vec::new(),
            ins: Vec::new(),
        }
    }

    pub(super) fn copy_in(&mut self, source: HostBlock, target: BlockId) {
        self.ins.push((source, target));
    }

    /// Whether copies wait for a plan.
    pub(super) fn has_copies(&self) -> bool {
        !self.outs.is_empty() || !self.ins.is_empty()
    }

    fn give_back(&mut self, blocks: impl Iterator<Item = HostBlock>) {
        if self.outs.is_empty() && self.ins.is_empty() {
            self.free.extend(blocks);
        } else {
            self.returned.extend(blocks);
        }
    }
}

/// Copies between the device and host memory.
pub(crate) struct Swaps<'a> {
    pub(crate) outs: Drain<'a, (BlockId, HostBlock)>,
    pub(crate) ins: Drain<'a, (HostBlock, BlockId)>,
}

impl KvCache {
    /// Copies what a request has computed to host memory, its blocks remain its own; false (and nothing changed) if there is
    /// no room.
    pub(crate) fn swap_out(&mut self, table: &mut BlockTable, num_computed: usize) -> bool {
        let num_blocks = table.blocks().count();
        if num_blocks > self.host.free.len() {
            return false;
        }
        let mut copy = |&block: &BlockId| {
            let target = self.host.free.pop();
            let target = target.expect("invariant: so many are free");
            self.host.outs.push((block, target));
            target
        };
        let groups = table.groups.iter();
        let groups =
            groups.map(|group_blocks| group_blocks.blocks[group_blocks.num_freed..].iter());
        table.swapped = Swapped {
            num_tokens: num_computed,
            num_indices: table.num_indices,
            groups: groups
                .map(|blocks| blocks.map(&mut copy).collect())
                .collect(),
        };
        true
    }

    /// Gives back what a request has in host memory.
    pub(crate) fn forget_swapped(&mut self, table: &mut BlockTable) {
        let swapped = std::mem::take(&mut table.swapped);
        self.host.give_back(swapped.blocks());
    }

    /// Forgets the copies that no plan has: what their requests have in host memory is forgotten, too.
    pub(crate) fn forget_swaps(&mut self) {
        self.host.outs.clear();
        self.host.ins.clear();
        self.host.free.append(&mut self.host.returned);
    }

    /// Takes the copies since the last call, which the next plan makes: source and target.
    pub(crate) fn take_swaps(&mut self) -> Swaps<'_> {
        self.host.free.append(&mut self.host.returned);
        Swaps {
            outs: self.host.outs.drain(..),
            ins: self.host.ins.drain(..),
        }
    }

    pub(crate) fn num_free_host(&self) -> usize {
        self.host.free.len() + self.host.returned.len()
    }

    /// Every host block is free, or one request's.
    pub(super) fn check_host<'a>(
        &self,
        tables: impl Iterator<Item = &'a BlockTable>,
    ) -> Result<(), Violation> {
        let mut owners = vec![0; self.host.num_blocks];
        for table in tables {
            let num_tokens = table.swapped.num_tokens;
            ensure!(
                num_tokens == 0 || table.num_indices() == 0,
                "a request has blocks, and {num_tokens} tokens in host memory"
            );
            for block in table.swapped.blocks() {
                owners[block as usize] += 1;
            }
        }
        for &block in self.host.free.iter().chain(&self.host.returned) {
            owners[block as usize] += 1;
        }
        let wrong = owners.iter().position(|&count| count != 1);
        ensure!(
            wrong.is_none(),
            "host block {} has {} owners, being free counted",
            wrong.unwrap_or(0),
            wrong.map_or(0, |block| owners[block])
        );
        Ok(())
    }
}
