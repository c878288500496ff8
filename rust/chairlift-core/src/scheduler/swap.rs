//! Who gives way may keep what it has computed in host memory, where copying it there and back takes less time than
//! computing it again.

use super::{Scheduler, live};
use crate::{cost_model::Work, request::Slot};

impl Scheduler {
    /// A running request that no step names is about to lose its blocks: copies them if that pays, and there is room.
    pub(super) fn swap_out(&mut self, slot: Slot) {
        let request = live(&mut self.requests, slot);
        let num_blocks = request.table.blocks().count() as u64;
        let both_ways = 2 * num_blocks * self.config.swap_block_time;
        let again = self.costs.added(Work::of(0, request.num_computed));
        if num_blocks > 0 && both_ways as f64 <= again {
            self.kv.swap_out(&mut request.table, request.num_computed);
        }
    }

    /// A step has failed: what it should have copied is anything.
    pub(super) fn forget_swaps(&mut self) {
        self.kv.forget_swaps();
        for request in self.requests.iter_mut().flatten() {
            self.kv.forget_swapped(&mut request.table);
        }
    }
}
