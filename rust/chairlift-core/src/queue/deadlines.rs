//! What is due when: a heap of times, cleaned of entries that no longer hold.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::ids::{Nanos, RequestId};

/// Entries that no longer hold are tolerated up to this many beside twice the live ones.
const SLACK: usize = 1024;

#[derive(Clone, Debug, Default)]
pub(crate) struct Deadlines {
    heap: BinaryHeap<Reverse<(Nanos, RequestId)>>,
}

impl Deadlines {
    pub(crate) fn push(&mut self, time: Nanos, request: RequestId) {
        self.heap.push(Reverse((time, request)));
    }

    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((time, _))| *time)
    }

    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<RequestId> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, request))| request)
    }

    /// Drops entries that no longer hold when they have become the majority: amortised O(log n) per push, memory bounded
    /// by the live.
    pub(crate) fn compact(&mut self, num_live: usize, holds: impl Fn(Nanos, RequestId) -> bool) {
        if self.heap.len() > 4 * num_live + SLACK {
            let mut entries = std::mem::take(&mut self.heap).into_vec();
            entries.retain(|Reverse((time, request))| holds(*time, *request));
            // A deadline that was moved away and back is listed twice.
            entries.sort_unstable();
            entries.dedup();
            self.heap = entries.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadlines(count: u64) -> Deadlines {
        let mut deadlines = Deadlines::default();
        (0..count).for_each(|i| deadlines.push(i, RequestId(i)));
        deadlines
    }

    #[test]
    fn entries_of_the_ended_are_dropped_once_they_are_many() {
        let mut deadlines = deadlines(SLACK as u64 + 9);
        deadlines.compact(2, |_, request| request.0 == 7);
        assert_eq!(deadlines.pop_due(Nanos::MAX), Some(RequestId(7)));
        assert_eq!(deadlines.next(), None);
    }

    #[test]
    fn a_deadline_that_moves_to_and_fro_takes_no_memory() {
        let mut deadlines = Deadlines::default();
        for i in 0..100_000 {
            deadlines.push(i % 2, RequestId(7));
            deadlines.compact(1, |time, _| time == i % 2);
        }
        assert!(deadlines.heap.len() <= SLACK + 4);
    }

    #[test]
    fn a_few_entries_of_the_ended_stay() {
        let mut deadlines = deadlines(SLACK as u64 + 8);
        deadlines.compact(2, |_, _| false);
        assert_eq!(deadlines.next(), Some(0));
    }
}
