//! What a consumer of block events knows of the prefix cache, and whether it is true.
//!
//! The tenants without a name and `x` are reported, the third is not. The mirror is built from events alone. What the
//! scheduler finds of a new prompt is at most what the mirror had before the plan, and, where nothing but the reported
//! group counts, at least what it has afterwards: within a plan blocks are evicted and none is published.

use std::collections::HashMap;

use chairlift_core::{Adapter, BlockEventKind, BlockEvents};

use crate::{
    tally::Sight,
    workload::Arrival,
    world::{Checked, World, ensure},
};

/// The tenants whose blocks are reported; a place is a stream.
pub(crate) const REPORTED: [&str; 2] = ["", "x"];

/// Whose blocks are told: a stream, and an adapter.
pub(crate) type Source = (u32, (u32, u64));

/// The reported blocks of the requests of an arrival; None: they are not reported.
pub(crate) fn source(arrival: &Arrival) -> Option<Source> {
    let stream = u32::from(arrival.tenant);
    let is_reported = (stream as usize) < REPORTED.len() && arrival.salt == 0;
    is_reported.then(|| (stream, key(arrival.adapter())))
}

fn key(adapter: Adapter) -> (u32, u64) {
    (adapter.slot, adapter.generation)
}

/// A block: whose it is, the block before it, and its tokens.
type Content = (Source, Option<u64>, Vec<i32>);

/// The blocks that events tell of.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Mirror {
    by_handle: HashMap<u64, Content>,
    by_content: HashMap<Content, u64>,
}

impl Mirror {
    /// Takes events; a consumer could not follow those that are wrong.
    fn apply(&mut self, events: &BlockEvents, block_size: usize) -> Checked {
        let mut tokens = events.tokens.chunks(block_size);
        for event in &events.list {
            let handle = event.handle;
            if let BlockEventKind::Stored { parent, adapter } = event.kind {
                let own = tokens.next().unwrap_or_default().to_vec();
                ensure!(
                    own.len() == block_size,
                    "a block is stored with {} tokens of {block_size}",
                    own.len()
                );
                let content = ((event.stream, key(adapter)), parent, own);
                let twice = self.by_content.insert(content.clone(), handle);
                ensure!(twice.is_none(), "equal blocks are stored with two handles");
                let twice = self.by_handle.insert(handle, content);
                ensure!(twice.is_none(), "block {handle} is stored twice");
            } else {
                let content = self.by_handle.remove(&handle);
                let content =
                    content.ok_or_else(|| format!("unknown block {handle} is removed"))?;
                ensure!(
                    content.0.0 == event.stream,
                    "block {handle} is removed from another stream"
                );
                self.by_content.remove(&content);
            }
        }
        ensure!(tokens.next().is_none(), "there are tokens without a block");
        Ok(())
    }

    /// Leading blocks of tokens that are known.
    fn longest(&self, source: Source, tokens: &[i32], block_size: usize) -> usize {
        let mut parent = None;
        let mut blocks = tokens.chunks_exact(block_size);
        let known = blocks.by_ref().map_while(|block| {
            let content = (source, parent, block.to_vec());
            parent = self.by_content.get(&content).copied();
            parent
        });
        known.count()
    }
}

/// A new request that has joined, and the blocks that the scheduler has found of it.
pub(crate) struct Found {
    pub(crate) client: usize,
    pub(crate) num_blocks: usize,
}

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
        for (event, own) in snapshot.list.iter().zip(0..) {
            let BlockEventKind::Stored { parent, .. } = event.kind else {
                return Err("a snapshot removes a block".into());
            };
            let before = parent.and_then(|parent| places.get(&parent));
            ensure!(
                before.is_none_or(|&before| before < own),
                "a snapshot has a block before its parent"
            );
        }
        told.apply(&snapshot, self.scenario.config.block_size)?;
        ensure!(
            told == self.mirror,
            "a snapshot has {} blocks, events told of {}",
            told.by_handle.len(),
            self.mirror.by_handle.len()
        );
        Ok(())
    }
}
