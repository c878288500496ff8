//! What requests do and wait for: one of them, or all that wait of a tenant.

use super::Scheduler;
use crate::{
    ids::RequestId,
    queue::WaitCause,
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
    /// What it waits for, by the last step that was planned; None while it runs.
    pub cause: Option<WaitCause>,
    /// Requests before it in the queue, were it to go on if it is suspended; with several tenants as if they took turns.
    pub num_before: usize,
    /// Tokens whose keys and values are written, or will be by the steps in flight.
    pub num_computed: usize,
    /// Known tokens, prompt and output.
    pub num_tokens: usize,
}

impl Explanation {
    /// Explains the sequence of a request that is furthest from its end; None if the request has ended or never was.
    pub(super) fn of(scheduler: &Scheduler, request: RequestId) -> Option<Self> {
        let sequences = scheduler.slots.sequences(request).into_iter();
        let sequences = sequences.filter_map(|slot| scheduler.slots.get(slot));
        // A sibling that waits for its parent does as the parent does.
        let leads = sequences.filter(|sequence| sequence.parent.is_none());
        let request = leads.min_by_key(|sequence| (sequence.row().is_some(), sequence.index))?;
        let num_before = num_before(scheduler, request);
        Some(Self::of_sequence(scheduler, request, num_before))
    }

    /// Explains a sequence that has `num_before` requests before it in the queue.
    fn of_sequence(scheduler: &Scheduler, request: &Request, num_before: usize) -> Self {
        let state = match request.state {
            _ if request.is_suspended() => RequestState::Suspended,
            State::Running { .. } => RequestState::Running,
            _ => RequestState::Waiting,
        };
        let runs = state == RequestState::Running;
        Self {
            state,
            cause: (!runs).then(|| scheduler.wait_clock.cause(request.waiter())),
            num_before,
            num_computed: request.num_computed,
            num_tokens: request.tokens.len(),
        }
    }
}

/// Requests before one in the queue, were it to go on if it is suspended.
fn num_before(scheduler: &Scheduler, request: &Request) -> usize {
    let queue = &scheduler.queue;
    match request.origin() {
        None => 0,
        Some(Origin::Fresh) => queue.num_before(request.tenant, request.queue_key()),
        Some(Origin::Preempted) => queue.num_preempted_before(request.queue_key()),
    }
}

/// The waiting requests of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingList {
    /// The first of them: preempted ones, then new ones in order, then suspended ones.
    pub requests: Vec<(RequestId, Explanation)>,
    /// All of them; sequences of a preempted request count one by one.
    pub num_waiting: usize,
}

impl WaitingList {
    /// Lists the waiting requests of a tenant, and explains the first `max_explained` of them.
    pub(super) fn of(scheduler: &Scheduler, tenant: &str, max_explained: usize) -> Self {
        let (queue, slots) = (&scheduler.queue, &scheduler.slots);
        let mut list = Self::default();
        let Some(tenant) = queue.shares.find(tenant) else {
            return list;
        };
        let mut add = |id: RequestId, num_before: usize| {
            list.num_waiting += 1;
            if list.requests.len() < max_explained
                && let Some(slot) = slots.find(id)
            {
                let request = slots.listed(slot);
                let explanation = Explanation::of_sequence(scheduler, request, num_before);
                list.requests.push((request.owner, explanation));
            }
        };
        for (num_before, id) in queue.preempted().enumerate() {
            let slot = slots.find(id);
            if slot.is_some_and(|slot| slots.listed(slot).tenant == tenant) {
                add(id, num_before);
            }
        }
        let new = queue.new_of(tenant).take(max_explained);
        for (num_before, id) in new.enumerate() {
            add(id, queue.num_before_in_turns(tenant, num_before));
        }
        if scheduler.num_suspended > 0 {
            let is_suspended = |request: &&Request| matches!(request.state, State::Suspended(_));
            let suspended = slots.iter().filter(is_suspended);
            for request in suspended.filter(|request| request.tenant == tenant) {
                add(request.id, num_before(scheduler, request));
            }
        }
        list.num_waiting += queue.num_new_of(tenant).saturating_sub(max_explained);
        list
    }
}
