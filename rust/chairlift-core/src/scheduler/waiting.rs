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
    queue::Waiter,
    request::{Origin, Request, State},
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
            self.queue
                .insert(request.tenant, is_fresh, request.queue_key());
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
                self.queue
                    .remove(request.tenant, is_fresh, request.queue_key());
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

    /// Changes what decides whether a request may go on, and where it stands in the queue.
    pub(super) fn alter(&mut self, slot: Slot, change: impl FnOnce(&mut Self)) {
        let was_suspended = self.slots.live(slot).is_suspended();
        let origin = self.stop_waiting(slot);
        change(self);
        let Some(origin) = origin else {
            self.begin_wait(slot);
            return;
        };
        let request = self.slots.live(slot);
        if was_suspended && !request.is_suspended() && origin == Origin::Fresh {
            let tenant = request.tenant;
            self.queue.arrive(tenant);
        }
        self.wait(slot, origin);
    }

    /// Begins to measure the wait of a request, as it waits now.
    pub(super) fn begin_wait(&mut self, slot: Slot) {
        let request = self.slots.live(slot);
        if !request.has_started && request.parent.is_none() {
            request.waits_before = self.wait_clock.totals(request.waiter());
        }
    }

    /// Records the wait of a request that is about to wait in another way, or no more.
    pub(super) fn record_wait(&mut self, slot: Slot) {
        let request = self.slots.live(slot);
        if !request.has_started && request.parent.is_none() {
            let totals = self.wait_clock.totals(request.waiter());
            let stats = &mut request.stats;
            stats.wait_times.add_since(&totals, &request.waits_before);
        }
    }

    /// A sibling that ends before its parent has started has waited as the parent did.
    pub(super) fn share_wait(&mut self, slot: Slot) {
        let request = self.slots.live(slot);
        let has_started = request.has_started;
        if let Some(parent) = request.parent.filter(|_| !has_started) {
            self.record_wait(parent);
            self.begin_wait(parent);
            let waits = self.slots.live(parent).stats.wait_times;
            self.slots.live(slot).stats.wait_times = waits;
        }
    }
}

impl Request {
    /// How it waits, if it is live.
    pub(super) fn waiter(&self) -> Waiter {
        match self.state {
            _ if self.is_suspended() => Waiter::Suspended,
            State::Waiting(Origin::Fresh) => Waiter::Fresh(self.tenant),
            State::Waiting(Origin::Preempted) | State::Suspended(_) | State::WithParent => {
                Waiter::Preempted
            }
            State::Running { .. } | State::Ended { .. } => Waiter::Running,
        }
    }
}
