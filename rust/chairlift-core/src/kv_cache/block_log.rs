//! What is told outside of the prefix cache: which blocks of some tenants can be found in it.
//!
//! ```text
//! publish --> Stored(handle, parent, tokens)          evict --> Removed(handle)
//! ```
//!
//! - Events carry prompts: only tenants that are named are reported, and of these no request with a salt, since
//!   consumers compare tokens and know no salt.
//! - A handle is a keyed hash of the block's name. The name itself stays here: from it the names of later blocks could be
//!   computed.
//! - One KV group is reported, the first without a window if there is one: its blocks decide how long a beginning is
//!   found.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{
    KvCache,
    prefix_cache::{Adapter, BlockHash, Namespace, PrefixCache},
};
use crate::{
    error::{Violation, ensure},
    ids::BlockId,
};

/// A change of what can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEvent {
    /// Which of the reported tenants it belongs to.
    pub stream: u32,
    /// Names the block, as long as this scheduler lives; below 2^63.
    pub handle: u64,
    pub kind: BlockEventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockEventKind {
    /// The block can be found; the next `block_size` tokens of [`BlockEvents::tokens`] are its own.
    Stored {
        /// The block before it; None is the beginning of a prompt.
        parent: Option<u64>,
        adapter: Adapter,
    },
    /// It cannot be found any more.
    Removed,
}

/// Changes in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockEvents {
    pub list: Vec<BlockEvent>,
    pub tokens: Vec<i32>,
}

/// Whose blocks a request publishes, if they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source {
    stream: u32,
    adapter: Adapter,
}

#[derive(Clone, Copy, Debug)]
struct Reported {
    source: Source,
    handle: u64,
    parent: Option<u64>,
}

/// The reported blocks, and the events that were not taken yet: as many as a step stores and evicts.
#[derive(Clone, Debug)]
pub(super) struct BlockLog {
    key: [u8; 32],
    tenants: Vec<String>,
    group: usize,
    by_block: Vec<Option<Reported>>,
    events: BlockEvents,
}

impl BlockLog {
    /// Whose blocks the requests of a namespace publish; None is not reported.
    fn source(&self, namespace: &Namespace) -> Option<Source> {
        let mut tenants = self.tenants.iter();
        let stream = tenants.position(|tenant| *tenant == namespace.tenant)?;
        namespace.salt.is_empty().then_some(Source {
            stream: stream as u32,
            adapter: namespace.adapter,
        })
    }

    fn handle(&self, hash: BlockHash) -> u64 {
        let digest = blake3::keyed_hash(&self.key, hash.bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest.as_bytes()[..8]);
        u64::from_le_bytes(first) >> 1
    }

    fn store(
        &mut self,
        block: BlockId,
        source: Source,
        hash: BlockHash,
        parent: Option<BlockHash>,
        tokens: &[i32],
    ) {
        let reported = Reported {
            source,
            handle: self.handle(hash),
            parent: parent.map(|parent| self.handle(parent)),
        };
        self.by_block[block as usize] = Some(reported);
        self.events.store(&reported, tokens);
    }

    fn remove(&mut self, block: BlockId) {
        if let Some(reported) = self.by_block[block as usize].take() {
            self.events.remove(&reported);
        }
    }

    fn remove_adapter(&mut self, slot: u32) {
        for reported in &mut self.by_block {
            if let Some(gone) = reported.take_if(|known| known.source.adapter.slot == slot) {
                self.events.remove(&gone);
            }
        }
    }

    /// All that can be found, a block behind the one before it.
    fn snapshot(&self, cache: &PrefixCache) -> BlockEvents {
        let reported: Vec<_> = (0..).zip(&self.by_block).collect();
        let known = reported
            .iter()
            .filter_map(|&(block, known)| known.map(|known| (block, known)));
        let known: Vec<(BlockId, Reported)> = known.collect();
        let places = known.iter().enumerate();
        let places: HashMap<u64, usize, FixedState> = places
            .map(|(place, (_, reported))| (reported.handle, place))
            .collect();
        let (mut events, mut is_told) = (BlockEvents::default(), vec![false; known.len()]);
        let mut behind = Vec::new();
        for first in 0..known.len() {
            let mut place = Some(first);
            while let Some(untold) = place.filter(|&place| !is_told[place]) {
                is_told[untold] = true;
                behind.push(untold);
                place = known[untold]
                    .1
                    .parent
                    .and_then(|parent| places.get(&parent).copied());
            }
            while let Some(place) = behind.pop() {
                let (block, reported) = &known[place];
                events.store(reported, cache.tokens(*block));
            }
        }
        events
    }

    /// What is reported can be found.
    ///
    /// # Errors
    /// Names the first block that cannot.
    pub(super) fn check_invariants(&self, cache: &PrefixCache) -> Result<(), Violation> {
        for (block, reported) in (0..).zip(&self.by_block) {
            ensure!(
                reported.is_none() || cache.is_published(block),
                "block {block} is reported and cannot be found"
            );
        }
        Ok(())
    }
}

impl BlockEvents {
    fn store(&mut self, reported: &Reported, tokens: &[i32]) {
        let (parent, adapter) = (reported.parent, reported.source.adapter);
        self.push(reported, BlockEventKind::Stored { parent, adapter });
        self.tokens.extend_from_slice(tokens);
    }

    fn remove(&mut self, reported: &Reported) {
        self.push(reported, BlockEventKind::Removed);
    }

    fn push(&mut self, reported: &Reported, kind: BlockEventKind) {
        self.list.push(BlockEvent {
            stream: reported.source.stream,
            handle: reported.handle,
            kind,
        });
    }
}

impl KvCache {
    /// Reports the blocks of tenants from now on: those of requests that are added later.
    pub(crate) fn report_blocks(&mut self, tenants: Vec<String>) {
        let mut groups = self.groups.iter();
        let unlimited = groups.position(|group| group.kv.window.is_none());
        self.log = Some(Box::new(BlockLog {
            key: self.prefix_cache.derived_key("chairlift block handles"),
            tenants,
            group: unlimited.unwrap_or(0),
            by_block: vec![None; self.pool.num_blocks() + 1],
            events: BlockEvents::default(),
        }));
    }

    /// Moves the events since the last call out.
    pub(crate) fn take_block_events(&mut self) -> BlockEvents {
        let log = self.log.as_mut();
        log.map(|log| std::mem::take(&mut log.events))
            .unwrap_or_default()
    }

    /// All reported blocks as if they were stored now, each behind the one before it; O(blocks).
    pub(crate) fn block_snapshot(&self) -> BlockEvents {
        let log = self.log.as_ref();
        log.map(|log| log.snapshot(&self.prefix_cache))
            .unwrap_or_default()
    }

    /// Reports the blocks of an adapter as removed, which no request can name any more; O(blocks).
    pub(crate) fn remove_adapter(&mut self, slot: u32) {
        if let Some(log) = &mut self.log {
            log.remove_adapter(slot);
        }
    }

    pub(super) fn source(&self, namespace: &Namespace) -> Option<Source> {
        self.log.as_ref()?.source(namespace)
    }

    /// A block of a group can be found from now on.
    pub(super) fn report_stored(
        &mut self,
        (group, block): (usize, BlockId),
        source: Option<Source>,
        hash: BlockHash,
        parent: Option<BlockHash>,
        tokens: &[i32],
    ) {
        if let (Some(log), Some(source)) = (&mut self.log, source)
            && log.group == group
        {
            log.store(block, source, hash, parent, tokens);
        }
    }

    /// A block cannot be found any more.
    pub(super) fn report_removed(&mut self, block: BlockId) {
        if let Some(log) = &mut self.log {
            log.remove(block);
        }
    }
}
