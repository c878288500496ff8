//! What a consumer of block events knows of the prefix cache.
//!
//! The tenants without a name and `x` are reported, the third is not. The mirror is built from events alone.

use std::collections::HashMap;

use chairlift_core::{Adapter, BlockEventKind, BlockEvents};

use crate::workload::Arrival;

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
    pub(crate) fn apply(&mut self, events: &BlockEvents, block_size: usize) -> Result<(), String> {
        let mut tokens = events.tokens.chunks(block_size);
        for event in &events.list {
            let handle = event.handle;
            if let BlockEventKind::Stored { parent, adapter } = event.kind {
                let block = tokens.next().unwrap_or_default().to_vec();
                if block.len() != block_size {
                    let num = block.len();
                    return Err(format!(
                        "a block is stored with {num} tokens of {block_size}"
                    ));
                }
                let content = ((event.stream, key(adapter)), parent, block);
                if self.by_content.insert(content.clone(), handle).is_some() {
                    return Err("equal blocks are stored with two handles".into());
                }
                if self.by_handle.insert(handle, content).is_some() {
                    return Err(format!("block {handle} is stored twice"));
                }
            } else {
                let content = self.by_handle.remove(&handle);
                let content =
                    content.ok_or_else(|| format!("unknown block {handle} is removed"))?;
                if content.0.0 != event.stream {
                    return Err(format!("block {handle} is removed from another stream"));
                }
                self.by_content.remove(&content);
            }
        }
        match tokens.next() {
            Some(_) => Err("there are tokens without a block".into()),
            None => Ok(()),
        }
    }

    /// How many blocks events tell of.
    pub(crate) fn len(&self) -> usize {
        self.by_handle.len()
    }

    /// Leading blocks of tokens that are known.
    pub(crate) fn longest(&self, source: Source, tokens: &[i32], block_size: usize) -> usize {
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
