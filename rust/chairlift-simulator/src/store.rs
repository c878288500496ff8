//! A store beside the pool: what was in each block when it was used.

use std::collections::HashMap;

use chairlift_core::{Config, Scheduler, StoredName};

use crate::device::Device;

/// Blocks that the store holds at most; it begins again when it is full.
const MAX_BLOCKS: usize = 4096;

/// What was in a block when it was used, by its name; nothing for a model whose blocks are not stored.
#[derive(Default)]
pub(crate) struct Store(pub(crate) Option<HashMap<StoredName, Vec<u64>>>);

impl Store {
    /// A store for models without recurrent states.
    pub(crate) fn new(config: &Config, scheduler: &mut Scheduler) -> Self {
        if config.state_snapshots.is_some() {
            return Self(None);
        }
        scheduler.track_block_uses();
        Self(Some(HashMap::new()))
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
        let Some(blocks) = &mut self.0 else {
            return Ok(());
        };
        for used in scheduler.take_block_uses() {
            if blocks.len() >= MAX_BLOCKS {
                blocks.clear();
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
        Ok(())
    }
}
