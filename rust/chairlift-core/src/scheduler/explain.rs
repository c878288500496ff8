//! Why a request waits: what holds it up now, and for its last event where the time before its first step went.

use super::Scheduler;
use crate::{
    ids::{RequestId, Slot},
    queue::{WaitCause, Waiter},
    request::{Origin, Request, State},
};

/// What a live request is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// In the queue, new or preempted.
    Waiting,
    /// Has a row.
    Running,
    /// May not go on, with a row or without: paused, or without credit.
    Suspended,
}

/// What a live request does and waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub state: RequestState,
    /// What it waits for; None while it runs. As of the last step that was planned.
    pub cause: Option<WaitCause>,
    /// Requests before it in the queue, were it to go on if it is suspended; with several tenants as if they took turns.
    pub num_before: usize,
    /// Tokens whose keys and values are written, or will be by the steps in flight.
    pub num_computed: usize,
    /// Known tokens, prompt and output.
    pub num_tokens: usize,
}

impl Scheduler {
    /// Explains what a request does and waits for; None if it has ended or never was. Takes time in the number of waiting
    /// requests.
    pub fn explain(&self, request: RequestId) -> Option<Explanation> {
        let sequences = self.slots.sequences(request).into_iter();
        let sequences = sequences.filter_map(|slot| self.slots.get(slot));
        // The sequence that is furthest from its end counts: a sibling that waits for its parent does as the parent does.
        let leads = sequences.filter(|sequence| sequence.parent.is_none());
        let request = leads.min_by_key(|sequence| (sequence.row().is_some(), sequence.index))?;
        Some(self.explanation(request, self.num_before(request)))
    }

    /// Requests before one in the queue, were it to go on if it is suspended.
    pub(super) fn num_before(&self, request: &Request) -> usize {
        match request.origin() {
            None => 0,
            Some(Origin::Fresh) => self.queue.num_before(request.tenant, request.place()),
            Some(Origin::Preempted) => self.queue.num_preempted_before(request.place()),
        }
    }

    /// What a request does and waits for, which has so many before it.
    pub(super) fn explanation(&self, request: &Request, num_before: usize) -> Explanation {
        let state = match request.state {
            _ if request.is_suspended() => RequestState::Suspended,
            State::Running { .. } => RequestState::Running,
            _ => RequestState::Waiting,
        };
        let runs = state == RequestState::Running;
        Explanation {
            state,
            cause: (!runs).then(|| self.wait_clock.cause(waiter(request))),
            num_before,
            num_computed: request.num_computed,
            num_tokens: request.tokens.len(),
        }
    }

    /// Begins to measure the wait of a request, as it waits now.
    pub(super) fn begin_wait(&mut self, slot: Slot) {
        let request = self.slots.live(slot);
        if !request.has_started && request.parent.is_none() {
            request.waits_before = self.wait_clock.totals(waiter(request));
        }
    }

    /// Records the wait of a request that is about to wait in another way, or no more.
    pub(super) fn record_wait(&mut self, slot: Slot) {
        let request = self.slots.live(slot);
        if !request.has_started && request.parent.is_none() {
            let totals = self.wait_clock.totals(waiter(request));
            let stats = &mut request.stats;
            stats.wait_times.add_since(&totals, &request.waits_before);
        }
    }
}

impl Scheduler {
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

/// How a live request waits.
fn waiter(request: &Request) -> Waiter {
    match request.state {
        _ if request.is_suspended() => Waiter::Suspended,
        State::Waiting(Origin::Fresh) => Waiter::Fresh(request.tenant),
        State::Waiting(Origin::Preempted) | State::Suspended(_) | State::WithParent => {
            Waiter::Preempted
        }
        State::Running { .. } | State::Ended { .. } => Waiter::Running,
    }
}
