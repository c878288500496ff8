//! What is told of the prefix cache, to those that choose a server by it.

use super::Scheduler;
use crate::kv_cache::BlockEvents;

impl Scheduler {
    /// Reports which blocks of some tenants can be found in the prefix cache, from now on: those of requests that are
    /// added later and have no salt. A place in the list is a stream of events.
    pub fn report_blocks(&mut self, tenants: Vec<String>) {
        self.kv.report_blocks(tenants);
    }

    /// Moves the events since the last call out: those of one step if it is called after each.
    pub fn take_block_events(&mut self) -> BlockEvents {
        self.kv.take_block_events()
    }

    /// All reported blocks as if they were stored now, each behind the one before it; O(blocks).
    pub fn block_snapshot(&self) -> BlockEvents {
        self.kv.block_snapshot()
    }

    /// Reports the blocks of an adapter that is unloaded as removed: no request finds them; O(blocks).
    pub fn remove_adapter(&mut self, slot: u32) {
        self.kv.remove_adapter(slot);
    }
}
