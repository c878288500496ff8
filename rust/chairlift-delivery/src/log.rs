//! The events of one request that were sent, so that they can be sent again.

use std::collections::VecDeque;

/// Names a log until it is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogId(pub u64);

/// Memory of an event besides its bytes.
const ENTRY_BYTES: usize = size_of::<Entry>();

#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u32,
    len: u32,
}

/// The last events of a request within a bound of memory, encoded, in ascending order of number.
///
/// Their `request_id` may be absent or an old one: it is set when they are sent again.
#[derive(Debug)]
pub(crate) struct Log {
    bytes: VecDeque<u8>,
    entries: VecDeque<Entry>,
    max_bytes: usize,
    /// The highest number of an event that is no longer here.
    dropped: u32,
    last: u32,
}

impl Log {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            entries: VecDeque::new(),
            max_bytes,
            dropped: 0,
            last: 0,
        }
    }

    /// Memory that is held.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.entries.len() * ENTRY_BYTES
    }

    /// The highest number whose event is gone, and the highest of all.
    pub(crate) fn range(&self) -> (u32, u32) {
        (self.dropped, self.last)
    }

    /// Appends an event; the oldest ones give way to it.
    pub(crate) fn put(&mut self, number: u32, event: &[u8]) {
        self.last = number;
        self.bytes.extend(event);
        self.entries.push_back(Entry {
            number,
            len: event.len() as u32,
        });
        while self.len() > self.max_bytes {
            let Some(oldest) = self.entries.pop_front() else {
                return;
            };
            self.bytes.drain(..oldest.len as usize);
            self.dropped = oldest.number;
        }
    }

    /// Gives back memory that no further event needs.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    /// The events after a number.
    pub(crate) fn after(&mut self, number: u32) -> impl Iterator<Item = &[u8]> {
        let first = self.entries.partition_point(|entry| entry.number <= number);
        let skipped = self.entries.range(..first);
        let mut begin: usize = skipped.map(|entry| entry.len as usize).sum();
        let bytes = &*self.bytes.make_contiguous();
        self.entries.range(first..).map(move |entry| {
            let event = &bytes[begin..begin + entry.len as usize];
            begin += entry.len as usize;
            event
        })
    }
}
