//! Why a request waits: what holds it up now, and for its last event where the time before its first step went.

use super::{Scheduler, live};
use crate::{
    ids::{RequestId, Slot},
    queue::{Cause, Line},
    request::{Origin, Request, State},
};

/// What a live request is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In the queue, new or preempted.
    Waiting,
    /// Has a row.
    Running,
    /// May not go on, with a row or without: paused, or without credit.
    Suspended,
}

/// How a live request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub standing: Standing,
    /// What it waits for; None while it runs. As of the last step that was planned.
    pub cause: Option<Cause>,
    /// Requests before it in the queue, were it to go on if it is suspended; with several tenants as if they took turns.
    pub num_before: usize,
    /// Tokens whose keys and values are written, or will be by the steps in flight.
    pub num_computed: usize,
    /// Known tokens, prompt and output.
    pub num_tokens: usize,
}

impl Scheduler {
    /// How a request stands; None if it has ended or never was. Takes time in the number of those who wait.
    pub fn explain(&self, request: RequestId) -> Option<Waiting> {
        let answers = self.answers(request).into_iter();
        let answers = answers.filter_map(|slot| self.requests[slot as usize].as_ref());
        // Of several the one that is furthest from its end: whoever follows stands as the one that it follows.
        let leads = answers.filter(|answer| answer.leader.is_none());
        let request = leads.min_by_key(|answer| (answer.row().is_some(), answer.index))?;
        let standing = match request.state {
            _ if request.is_suspended() => Standing::Suspended,
            State::Running { .. } => Standing::Running,
            _ => Standing::Waiting,
        };
        let runs = standing == Standing::Running;
        let num_before = match request.origin() {
            None => 0,
            Some(Origin::Fresh) => self.queue.num_before(request.tenant, request.place()),
            Some(Origin::Preempted) => self.queue.num_preempted_before(request.place()),
        };
        Some(Waiting {
            standing,
            cause: (!runs).then(|| self.waits.cause(line(request))),
            num_before,
            num_computed: request.num_computed,
            num_tokens: request.tokens.len(),
        })
    }

    /// Begins to book the wait of a request in the line that it is in now.
    pub(super) fn begin_wait(&mut self, slot: Slot) {
        let request = live(&mut self.requests, slot);
        if !request.has_started && request.leader.is_none() {
            request.waits_before = self.waits.totals(line(request));
        }
    }

    /// Books the wait of a request that is about to leave its line.
    pub(super) fn book_wait(&mut self, slot: Slot) {
        let request = live(&mut self.requests, slot);
        if !request.has_started && request.leader.is_none() {
            let totals = self.waits.totals(line(request));
            let stats = &mut request.stats;
            stats.waits.add_since(&totals, &request.waits_before);
        }
    }
}

impl Scheduler {
    /// Whoever ends before the one that it follows has waited as that one did.
    pub(super) fn share_wait(&mut self, slot: Slot) {
        let request = live(&mut self.requests, slot);
        let has_started = request.has_started;
        if let Some(leader) = request.leader.filter(|_| !has_started) {
            self.book_wait(leader);
            self.begin_wait(leader);
            let waits = live(&mut self.requests, leader).stats.waits;
            live(&mut self.requests, slot).stats.waits = waits;
        }
    }
}

/// Where a live request waits.
fn line(request: &Request) -> Line {
    match request.state {
        _ if request.is_suspended() => Line::Suspended,
        State::Waiting(Origin::Fresh) => Line::Tenant(request.tenant),
        State::Waiting(Origin::Preempted) | State::Suspended(_) | State::Following => Line::Front,
        State::Running { .. } | State::Ended { .. } => Line::Seated,
    }
}
