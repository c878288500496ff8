//! What is due when: a heap of times, cleaned of requests that have ended.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{Nanos, request::RequestId};

/// Entries of ended requests are tolerated up to this many beside twice the live ones.
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

    /// Drops ended requests when they have become the majority: amortised O(1) per push, memory bounded by the live.
    pub(crate) fn compact(&mut self, num_live: usize, is_live: impl Fn(RequestId) -> bool) {
        if self.heap.len() > 4 * num_live + SLACK {
            self.heap.retain(|Reverse((_, request))| is_live(*request));
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
        deadlines.compact(2, |request| request.0 == 7);
        assert_eq!(deadlines.pop_due(Nanos::MAX), Some(RequestId(7)));
        assert_eq!(deadlines.next(), None);
    }

    #[test]
    fn a_few_entries_of_the_ended_stay() {
        let mut deadlines = deadlines(SLACK as u64 + 8);
        deadlines.compact(2, |_| false);
        assert_eq!(deadlines.next(), Some(0));
    }
}
