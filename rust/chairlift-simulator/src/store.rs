//! A store beside the pool: what was in each block and each snapshot of a recurrent state when it was used.

use std::collections::HashMap;

use chairlift_core::{Scheduler, Stored, StoredName};

use crate::device::Device;

/// Blocks that the store holds at most; it begins again when it is full.
const MAX_BLOCKS: usize = 4096;

/// One of so many blocks, and of so many states, is lost, so that beginnings end before gaps.
const LOST_BLOCKS: u8 = 32;
const LOST_STATES: u8 = 4;

/// What was in a block or a state when it was used, by its name.
#[derive(Default)]
pub(crate) struct Store {
    blocks: HashMap<StoredName, Vec<u64>>,
    states: HashMap<StoredName, u64>,
}

impl Stored for Store {
    fn has_block(&self, name: &StoredName) -> bool {
        self.block(name).is_some()
    }

    fn has_state(&self, name: &StoredName) -> bool {
        self.state(name).is_some()
    }
}

impl Store {
    /// An empty store of what a scheduler tells.
    pub(crate) fn new(scheduler: &mut Scheduler) -> Self {
        scheduler.track_block_uses();
        Self::default()
    }

    pub(crate) fn block(&self, name: &StoredName) -> Option<&Vec<u64>> {
        self.blocks
            .get(name)
            .filter(|_| !name[0].is_multiple_of(LOST_BLOCKS))
    }

    pub(crate) fn state(&self, name: &StoredName) -> Option<u64> {
        let state = self.states.get(name).copied();
        state.filter(|_| !name[0].is_multiple_of(LOST_STATES))
    }

    /// Takes what was used since the last call, as it lies in memory now.
    ///
    /// # Errors
    /// A name stands for two contents.
    pub(crate) fn keep(
        &mut self,
        scheduler: &mut Scheduler,
        device: &Device,
    ) -> Result<(), String> {
        let Self { blocks, states } = self;
        for used in scheduler.take_block_uses() {
            if blocks.len() >= MAX_BLOCKS {
                blocks.clear();
                states.clear();
            }
            let content = device.block(used.block);
            let known = blocks.entry(used.name).or_insert_with(|| content.to_vec());
            if *known != content {
                let block = used.block;
                return Err(format!(
                    "block {block} is used under the name of another content"
                ));
            }
        }
        for used in scheduler.take_state_uses() {
            let content = device.states.snapshot(used.snapshot);
            if *states.entry(used.name).or_insert(content) != content {
                let snapshot = used.snapshot;
                return Err(format!(
                    "state snapshot {snapshot} is used under the name of another content"
                ));
            }
        }
        Ok(())
    }
}
