//! Waiting, in the queue or outside. A request that is paused or has no credit may not go on: it is suspended.
//!
//! ```text
//!                 may go on          suspended
//!   with a row    running            running, keeps row and blocks until another request needs them
//!   without       queue              outside the queue
//! ```
//!
//! Suspended requests with a row are the first to be preempted, the youngest first: by a running request that needs a block,
//! and by the head of the queue if it can be admitted then. They resume as all preempted requests do.

use super::Scheduler;
use crate::{
    ids::Slot,
    request::{Origin, State},
};

impl Scheduler {
    /// A request without a row waits: in the queue, or outside while it may not go on.
    pub(super) fn wait(&mut self, slot: Slot, origin: Origin) {
        let request = self.slots.live(slot);
        self.num_waiting_tokens += request.tokens.len();
        if request.is_suspended() {
            request.state = State::Suspended(origin);
            self.num_suspended += 1;
        } else {
            request.state = State::Waiting(origin);
            let is_fresh = origin == Origin::Fresh;
            self.queue.insert(request.tenant, is_fresh, request.place());
        }
        self.begin_wait(slot);
    }

    /// Ends what `wait` began, and returns where the request came from; None if it does not wait.
    pub(super) fn stop_waiting(&mut self, slot: Slot) -> Option<Origin> {
        self.record_wait(slot);
        let request = self.slots.live(slot);
        match request.state {
            State::Waiting(origin) => {
                let is_fresh = origin == Origin::Fresh;
                self.queue.remove(request.tenant, is_fresh, request.place());
            }
            State::Suspended(_) => self.num_suspended -= 1,
            State::WithParent | State::Running { .. } | State::Ended { .. } => return None,
        }
        self.num_waiting_tokens -= request.tokens.len();
        request.origin()
    }

    /// Requests without a row; the queue's cap counts them.
    pub fn num_waiting(&self) -> usize {
        self.queue.len() + self.num_suspended + self.num_with_parent
    }
}
