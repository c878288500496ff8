//! Whether what events tell of the prefix cache is true.
//!
//! What the scheduler finds of a new prompt is at most what the mirror had before the plan, and, where nothing but the
//! reported group counts, at least what it has afterwards: within a plan blocks are evicted and none is published.

use std::collections::HashMap;

use chairlift_core::BlockEventKind;

use crate::{
    mirror::{Found, Mirror},
    tally::Sight,
    world::{Checked, World, ensure},
};

impl World {
    /// Takes the events of blocks, and compares them with what was found of new prompts.
    pub(crate) fn follow_blocks(&mut self) -> Checked {
        let found = std::mem::take(&mut self.found);
        let before: Vec<_> = found.iter().map(|found| self.known_blocks(found)).collect();
        let events = self.scheduler.take_block_events();
        self.tally.add(Sight::BlockEvents, events.list.len() as u64);
        let block_size = self.scenario.config.block_size;
        self.mirror.apply(&events, block_size)?;
        for (found, before) in found.iter().zip(before) {
            self.check_found(found, before)?;
        }
        Ok(())
    }

    /// Blocks of a new prompt of which events told; None: it is not reported.
    fn known_blocks(&self, found: &Found) -> Option<usize> {
        let client = &self.clients[found.client];
        let prompt = &client.answer.tokens[..client.answer.num_prompt - 1];
        let block_size = self.scenario.config.block_size;
        let source = client.source.filter(|_| client.reads_cache)?;
        Some(self.mirror.longest(source, prompt, block_size))
    }

    fn check_found(&self, found: &Found, before: Option<usize>) -> Checked {
        let (Some(before), Some(after)) = (before, self.known_blocks(found)) else {
            return Ok(());
        };
        let (label, num_blocks) = (self.clients[found.client].label, found.num_blocks);
        let config = &self.scenario.config;
        let is_unlimited = |group: &chairlift_core::KvGroup| group.window.is_none();
        ensure!(
            num_blocks <= before || !config.kv_groups.iter().any(is_unlimited),
            "{num_blocks} blocks of #{label} are found, events told of {before}"
        );
        let is_all = config.kv_groups.len() == 1 && config.state_snapshots.is_none();
        ensure!(
            num_blocks >= after || !is_all || !is_unlimited(&config.kv_groups[0]),
            "{num_blocks} blocks of #{label} are found, events still tell of {after}"
        );
        Ok(())
    }

    /// The mirror is what the scheduler would tell to a new consumer, which can follow it.
    pub(crate) fn check_mirror(&self) -> Checked {
        let (snapshot, mut told) = (self.scheduler.block_snapshot(), Mirror::default());
        let place = |event: &chairlift_core::BlockEvent| event.handle;
        let places: HashMap<u64, usize> = snapshot.list.iter().map(place).zip(0..).collect();
        for (event, number) in snapshot.list.iter().zip(0..) {
            let BlockEventKind::Stored { parent, .. } = event.kind else {
                return Err("a snapshot removes a block".into());
            };
            let before = parent.and_then(|parent| places.get(&parent));
            ensure!(
                before.is_none_or(|&before| before < number),
                "a snapshot has a block before its parent"
            );
        }
        told.apply(&snapshot, self.scenario.config.block_size)?;
        ensure!(
            told == self.mirror,
            "a snapshot has {} blocks, events told of {}",
            told.len(),
            self.mirror.len()
        );
        Ok(())
    }
}
