//! Counts since the store was opened; any thread may read them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the threads count.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) loaded: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) corrupt: AtomicU64,
    pub(crate) declined: AtomicU64,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// A snapshot of the counts, and what the store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks that can be loaded.
    pub num_blocks: usize,
    /// Bytes of all segments, those of other layouts included.
    pub num_bytes: u64,
    /// Segments of another model, layout or key, which are kept until their bytes are needed.
    pub num_foreign: usize,
    /// Blocks that were read and were as they had been written.
    pub loaded: u64,
    pub written: u64,
    /// Writes that the full queue did not take.
    pub dropped: u64,
    /// Writes that the system refused.
    pub failed: u64,
    /// Blocks that could not be read, or were not as they had been written.
    pub corrupt: u64,
    /// Loads that were predicted to take longer than computing.
    pub declined: u64,
}

impl Counters {
    /// The counts, without what the index knows.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            loaded: self.loaded.load(Relaxed),
            written: self.written.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            failed: self.failed.load(Relaxed),
            corrupt: self.corrupt.load(Relaxed),
            declined: self.declined.load(Relaxed),
            ..Stats::default()
        }
    }
}
