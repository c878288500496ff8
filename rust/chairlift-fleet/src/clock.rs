//! What happens outside of the replicas, in order of time.

use std::{cmp::Reverse, collections::BinaryHeap};

use chairlift_core::Nanos;

use crate::command::Command;

/// Something that happens; of things at the same time, the first in this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A router learns that a request ended, which was sent so often.
    Ended {
        index: u32,
        num_sent: u32,
    },
    /// A replica tells another one.
    Tell {
        replica: u16,
        command: Command,
    },
    /// A prefill replica has no more of a request.
    CallOver {
        index: u32,
    },
    /// The blocks of a request of a decode replica are late, if they have not come.
    Late {
        index: u32,
        replica: u16,
    },
    /// All replicas report their loads.
    Report,
    /// A replica is lost.
    Lost {
        replica: u16,
    },
    /// Routers learn that it was.
    Detected {
        replica: u16,
    },
    /// A replica takes requests: it has restarted, or was started.
    Joined {
        replica: u16,
    },
    /// The autoscaler looks.
    Scale,
    /// The trace has it.
    Arrival {
        index: u32,
    },
    Cancel {
        index: u32,
    },
    Flush,
}

/// Times of events, and of replicas that have something to do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// The events of the trace, in order.
    trace: Vec<(Nanos, Event)>,
    next: usize,
    events: BinaryHeap<Reverse<(Nanos, Event)>>,
}

impl Clock {
    pub(crate) fn new(mut trace: Vec<(Nanos, Event)>) -> Self {
        trace.sort_unstable();
        Self {
            trace,
            next: 0,
            events: BinaryHeap::new(),
        }
    }

    pub(crate) fn at(&mut self, time: Nanos, event: Event) {
        self.events.push(Reverse((time, event)));
    }

    fn next_of_trace(&self) -> Option<(Nanos, Event)> {
        self.trace.get(self.next).copied()
    }

    fn next_of_events(&self) -> Option<(Nanos, Event)> {
        self.events.peek().map(|&Reverse(event)| event)
    }

    /// When something happens next.
    pub(crate) fn next_time(&self) -> Option<Nanos> {
        let times = [self.next_of_trace(), self.next_of_events()];
        times.into_iter().flatten().map(|(time, _)| time).min()
    }

    pub(crate) fn pop(&mut self) -> Option<(Nanos, Event)> {
        match (self.next_of_trace(), self.next_of_events()) {
            (Some(of_trace), other) if other.is_none_or(|other| of_trace < other) => {
                self.next += 1;
                Some(of_trace)
            }
            _ => self.events.pop().map(|Reverse(event)| event),
        }
    }
}
