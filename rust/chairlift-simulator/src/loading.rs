//! Requests that wait for blocks from the store, which keeps what was used.

use chairlift_core::Stored;

use crate::{
    tally::Sight,
    workload::Label,
    world::{Checked, World, ensure},
};

impl World {
    /// Copies the blocks that were used to the store: before a plan is carried out, and after a step has ended.
    pub(crate) fn keep_blocks(&mut self) -> Checked {
        self.store.keep(&mut self.scheduler, &self.device)
    }

    /// Loads the blocks that a request in the queue lacks, as far as the store has them.
    pub(crate) fn load_blocks(&mut self, label: Label) -> Checked {
        let Some(index) = self.find(label) else {
            return Ok(());
        };
        let id = self.clients[index].id;
        // As a server does that reads a disk, or as one that others compute prompts for.
        let is_disk = label.is_multiple_of(2);
        let missing = if is_disk {
            self.scheduler.stored_blocks(id, &self.store)
        } else {
            self.scheduler.missing_blocks(id)
        };
        let known: Vec<_> = missing
            .names
            .iter()
            .map_while(|name| self.store.block(name))
            .collect();
        let has_state = missing.state.is_none_or(|name| self.store.has_state(&name));
        ensure!(
            !is_disk || known.len() == missing.names.len() && has_state,
            "#{label} is to load a beginning that the store lacks a part of"
        );
        if known.is_empty() {
            return Ok(());
        }
        // `tell_time`, which would borrow the store too.
        self.latest = self.latest.max(self.now);
        let latest = self.latest;
        ensure!(
            self.scheduler.hold(self.now, id),
            "#{label} lacks blocks and is not in the queue"
        );
        let blocks = self
            .scheduler
            .insert_blocks(id, missing.number, known.len());
        let blocks = blocks.ok_or_else(|| format!("#{label} is held and takes no blocks"))?;
        let mut num_filled = 0;
        for (&block, content) in blocks.iter().zip(known) {
            if block != 0 {
                self.device.block_mut(block).copy_from_slice(content);
                self.tally.saw(Sight::Loaded);
                num_filled += 1;
            }
        }
        let mut is_whole = blocks.len() == missing.names.len();
        // A state is of use behind all blocks alone, which may have come at another time.
        if let Some(name) = missing.state {
            let content = self.store.state(&name);
            let snapshot = content.and_then(|_| self.scheduler.insert_state(id));
            if let (Some(content), Some(snapshot)) = (content, snapshot) {
                self.device.states.fill(snapshot, content);
                self.tally.saw(Sight::StateFilled);
            }
            is_whole &= snapshot.is_some();
        }
        // Of a group with a window few blocks stand for all before them.
        let config = &self.scenario.config;
        let has_windows = config.kv_groups.iter().any(|group| group.window.is_some());
        let num_indices = if has_windows && num_filled > 0 {
            missing.num_indices
        } else {
            num_filled.min(missing.num_indices)
        };
        self.clients[index].num_loaded += num_indices * config.block_size;
        self.scheduler.release_held(self.now, id);
        if is_disk && is_whole && label.is_multiple_of(4) {
            // To ask again leaves nothing that counts as loaded.
            self.clients[index].num_loaded = 0;
            let (found, end) = (
                self.scheduler.missing_blocks(id).first,
                missing.first + missing.num_indices,
            );
            ensure!(
                found >= end,
                "#{label} finds {found} blocks, though all of {end} were loaded"
            );
            self.tally.saw(Sight::LoadedWhole);
        }
        self.last_change = self.tally.steps();
        self.attempt.is_unsettled |= self.attempt.oldest.is_some();
        self.clients[index].wait.suspend(latest, false);
        self.begin_to_wait(index);
        Ok(())
    }
}
