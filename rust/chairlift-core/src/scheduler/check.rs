//! The invariants of the scheduler, executable.

use super::Scheduler;
use crate::{
    error::{Violation, ensure},
    kv_cache::TableUse,
    request::{Origin, Request, State},
};

/// Checks that everything has one owner and that every count is true; O(blocks + requests).
///
/// # Errors
/// Describes the first invariant that does not hold.
pub(super) fn check_invariants(scheduler: &Scheduler) -> Result<(), Violation> {
    let requests = || scheduler.slots.iter();
    let uses = requests().map(|request| TableUse {
        id: request.id.0,
        table: &request.table,
        num_computed: request.num_computed,
        num_tokens: request.tokens.len(),
        is_settled: request.in_flight == 0 && request.parent.is_none(),
    });
    let items = scheduler.in_flight.iter().flat_map(|step| &step.items);
    let written = items.filter_map(|item| item.saved);
    scheduler.kv.check_invariants(uses, written)?;
    scheduler
        .rows
        .check_invariants(requests().filter_map(Request::row))?;
    scheduler.slots.check_invariants()?;
    check_queue(scheduler)?;
    check_running(scheduler)?;
    for request in requests() {
        check_request_state(scheduler, request)?;
    }
    Ok(())
}

fn check_queue(scheduler: &Scheduler) -> Result<(), Violation> {
    let (mut num_preempted, mut num_tokens) = (0, 0);
    for (is_new, place) in scheduler.queue.iter() {
        let id = place.request();
        let slot = scheduler.slots.find(id);
        let request = slot.and_then(|slot| scheduler.slots.get(slot));
        let Some(request) = request.filter(|request| matches!(request.state, State::Waiting(_)))
        else {
            return Err(Violation(format!("{id:?} is queued and does not wait")));
        };
        let is_fresh = request.origin() == Some(Origin::Fresh);
        ensure!(
            request.queue_key() == place && is_fresh == is_new,
            "{id:?} has a wrong place"
        );
        num_preempted += usize::from(request.is_preempted());
    }
    let (mut num_queued, mut num_suspended) = (0, 0);
    let requests = scheduler.slots.iter();
    let num_live = requests.filter(|request| request.is_live()).count();
    let waits = |request: &&Request| request.origin().is_some();
    for request in scheduler.slots.iter().filter(waits) {
        let is_queued = matches!(request.state, State::Waiting(_));
        let id = request.id.0;
        ensure!(
            is_queued != request.is_suspended(),
            "request {id} is in the queue and suspended, or neither"
        );
        *(if is_queued {
            &mut num_queued
        } else {
            &mut num_suspended
        }) += 1;
        num_tokens += request.tokens.len();
    }
    let follows = |request: &&Request| request.state == State::WithParent;
    let num_with_parent = scheduler.slots.iter().filter(follows).count();
    for (what, counted, expected) in [
        ("are queued", scheduler.queue.len(), num_queued),
        (
            "wait outside the queue",
            scheduler.num_suspended,
            num_suspended,
        ),
        (
            "wait for a parent",
            scheduler.num_with_parent,
            num_with_parent,
        ),
        (
            "are preempted",
            scheduler.queue.num_preempted(),
            num_preempted,
        ),
        ("have a share", scheduler.queue.shares.num_live(), num_live),
        ("tokens wait", scheduler.num_waiting_tokens, num_tokens),
    ] {
        ensure!(counted == expected, "{expected} {what}, {counted} counted");
    }
    Ok(())
}

fn check_running(scheduler: &Scheduler) -> Result<(), Violation> {
    let runs = |request: &&Request| matches!(request.state, State::Running { .. });
    let num_running = scheduler.slots.iter().filter(runs).count();
    let listed = scheduler
        .running
        .iter()
        .filter_map(|&slot| scheduler.slots.get(slot));
    ensure!(
        listed.filter(runs).count() == num_running && scheduler.running.len() == num_running,
        "{num_running} requests run, {} are listed",
        scheduler.running.len()
    );
    Ok(())
}

fn check_request_state(scheduler: &Scheduler, request: &Request) -> Result<(), Violation> {
    let id = request.id.0;
    let named = scheduler.in_flight.iter().flat_map(|step| &step.items);
    let named = named.filter(|item| {
        scheduler
            .slots
            .get(item.slot)
            .is_some_and(|other| other.id == request.id)
    });
    let (num_steps, num_samples) = named.fold((0, 0), |(steps, samples), item| {
        (steps + 1, samples + usize::from(item.num_samples > 0))
    });
    ensure!(
        num_steps == request.in_flight,
        "request {id} counts its steps wrong"
    );
    ensure!(
        num_samples == request.num_unknown,
        "request {id} waits for {} tokens, {num_samples} are sampled",
        request.num_unknown
    );
    let num_drafts = if request.in_flight > 0 {
        request.drafting.drafts.len()
    } else {
        0
    };
    ensure!(
        num_drafts == 0
            || (request.in_flight == 1
                && request.num_computed == request.tokens.len() + num_drafts)
            || !request.is_live(),
        "request {id} has {num_drafts} drafts in flight, or more than them"
    );
    ensure!(
        !request.is_live() || request.limit_reached().is_none(),
        "request {id} lives and may have no more tokens"
    );
    match request.state {
        State::Waiting(_) | State::Suspended(_) => ensure!(
            request.table.is_empty(),
            "request {id} waits and owns blocks"
        ),
        State::WithParent => ensure!(
            request.parent.is_some() && request.table.is_empty(),
            "request {id} waits for no parent, or owns blocks"
        ),
        State::Running { .. } => ensure!(
            request.num_computed + usize::from(request.in_flight == 0)
                <= request.num_tokens() + num_drafts
                && request.tokens.len() <= request.credit_end,
            "request {id} runs and has nothing to compute"
        ),
        State::Ended { .. } => {
            ensure!(
                request.in_flight > 0,
                "request {id} has ended and is still here"
            );
        }
    }
    Ok(())
}
