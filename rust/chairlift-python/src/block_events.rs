//! `BlockEvents`: what can be found in the prefix cache, as its consumers take it.

use std::mem::size_of;

use chairlift_core::{self as core, Adapter, BlockEvent, BlockEventKind};
use pyo3::prelude::*;

/// Handles, parent, slot and load of the adapter, and tokens of blocks that follow each other; of removed blocks the
/// handles alone.
type Change = (Vec<u64>, Option<u64>, (u32, u64), Option<Vec<i32>>);

/// Changes of the prefix cache in their order; immutable, so that any thread may read them.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct BlockEvents {
    inner: core::BlockEvents,
    block_size: usize,
}

impl BlockEvents {
    pub(crate) fn new(inner: core::BlockEvents, block_size: usize) -> Self {
        Self { inner, block_size }
    }
}

/// Puts an event into the last change if it goes on there.
fn goes_on(changes: &mut [Change], event: &BlockEvent, tokens: Option<&[i32]>) -> bool {
    let Some((handles, _, of, stored)) = changes.last_mut() else {
        return false;
    };
    match (event.kind, stored, tokens) {
        (BlockEventKind::Removed, None, _) => {}
        (BlockEventKind::Stored { parent, adapter }, Some(stored), Some(tokens))
            if parent == handles.last().copied() && *of == (adapter.slot, adapter.generation) =>
        {
            stored.extend_from_slice(tokens);
        }
        _ => return false,
    }
    handles.push(event.handle);
    true
}

#[pymethods]
impl BlockEvents {
    fn __len__(&self) -> usize {
        self.inner.list.len()
    }

    #[getter]
    fn num_bytes(&self) -> usize {
        self.inner.list.len() * size_of::<BlockEvent>() + self.inner.tokens.len() * size_of::<i32>()
    }

    #[getter]
    fn streams(&self) -> Vec<u32> {
        let mut streams: Vec<_> = self.inner.list.iter().map(|event| event.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    #[getter]
    fn has_adapters(&self) -> bool {
        self.inner.list.iter().any(|event| {
            matches!(event.kind, BlockEventKind::Stored { adapter, .. } if adapter.slot > 0)
        })
    }

    fn changes(&self, stream: u32) -> Vec<Change> {
        let mut changes: Vec<Change> = Vec::new();
        let mut tokens = self.inner.tokens.chunks(self.block_size);
        for event in &self.inner.list {
            let (stored, parent, adapter) = match event.kind {
                BlockEventKind::Removed => (None, None, Adapter::default()),
                BlockEventKind::Stored { parent, adapter } => (tokens.next(), parent, adapter),
            };
            if event.stream != stream || goes_on(&mut changes, event, stored) {
                continue;
            }
            let adapter = (adapter.slot, adapter.generation);
            changes.push((
                vec![event.handle],
                parent,
                adapter,
                stored.map(<[i32]>::to_vec),
            ));
        }
        changes
    }
}
