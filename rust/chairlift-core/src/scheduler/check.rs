//! The invariants of the scheduler, executable.

use super::{Scheduler, slot_of};
use crate::{
    error::{Violation, ensure},
    kv_cache::TableUse,
    request::{Origin, Request, State},
};

impl Scheduler {
    /// Everything has one owner and every count is true; O(blocks + requests).
    ///
    /// # Errors
    /// Describes the first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        let requests = || self.requests.iter().flatten();
        let uses = requests().map(|request| TableUse {
            id: request.id.0,
            table: &request.table,
            num_computed: request.num_computed,
            num_tokens: request.tokens.len(),
            is_settled: request.in_flight == 0 && request.parent.is_none(),
        });
        let items = self.in_flight.iter().flat_map(|step| &step.items);
        let written = items.filter_map(|item| item.saved);
        self.kv.check_invariants(uses, written)?;
        self.rows
            .check_invariants(requests().filter_map(Request::row))?;
        self.check_slots()?;
        self.check_groups()?;
        self.check_queue()?;
        self.check_running()?;
        for request in requests() {
            self.check_request_state(request)?;
        }
        Ok(())
    }

    fn check_slots(&self) -> Result<(), Violation> {
        let mut free = vec![false; self.requests.len()];
        for &slot in &self.free_slots {
            ensure!(!free[slot as usize], "slot {slot} is free twice");
            free[slot as usize] = true;
        }
        for (slot, request) in self.requests.iter().enumerate() {
            ensure!(
                free[slot] != request.is_some(),
                "slot {slot} is free and used, or neither"
            );
        }
        Ok(())
    }

    fn check_groups(&self) -> Result<(), Violation> {
        let sequences = self.requests.iter().flatten().filter(|r| r.is_live());
        for sequence in sequences {
            let id = sequence.id.0;
            let group = self.groups.get(&sequence.owner);
            let num_siblings = group.into_iter().flatten().filter(|&&slot| {
                let other = self.requests[slot as usize].as_ref();
                let parent = other.and_then(|other| other.parent);
                parent.is_some_and(|slot| {
                    let parent = self.requests[slot as usize].as_ref();
                    parent.is_some_and(|parent| parent.id == sequence.id)
                })
            });
            ensure!(
                num_siblings.count() == sequence.num_siblings,
                "sequence {id} counts its siblings wrong"
            );
            ensure!(
                sequence.parent.is_none() || sequence.in_flight == 0,
                "sequence {id} waits for its parent and is in a step"
            );
            let is_alone = sequence.owner == sequence.id;
            ensure!(
                group.map_or(is_alone, |slots| {
                    let mut slots = slots.iter();
                    slots.any(|&slot| {
                        let other = self.requests[slot as usize].as_ref();
                        other.is_some_and(|other| other.id == sequence.id)
                    })
                }),
                "sequence {id} is not listed among those of its request"
            );
        }
        let listed: usize = self.groups.values().map(Vec::len).sum();
        let requests = self.requests.iter().flatten().filter(|r| r.is_live());
        let of_many = requests.filter(|r| self.groups.contains_key(&r.owner));
        let num_sequences = of_many.count();
        ensure!(
            listed == num_sequences,
            "{num_sequences} sequences of several live, {listed} are listed"
        );
        Ok(())
    }

    fn check_queue(&self) -> Result<(), Violation> {
        let (mut num_preempted, mut num_tokens) = (0, 0);
        for (is_new, place) in self.queue.iter() {
            let id = place.request();
            let slot = slot_of(&self.requests, id);
            let request = slot.and_then(|slot| self.requests[slot as usize].as_ref());
            let Some(request) =
                request.filter(|request| matches!(request.state, State::Waiting(_)))
            else {
                return Err(Violation(format!("{id:?} is queued and does not wait")));
            };
            let is_fresh = request.origin() == Some(Origin::Fresh);
            ensure!(
                request.place() == place && is_fresh == is_new,
                "{id:?} has a wrong place"
            );
            num_preempted += usize::from(request.is_preempted());
        }
        let (mut num_queued, mut num_suspended) = (0, 0);
        let requests = self.requests.iter().flatten();
        let num_live = requests.filter(|request| request.is_live()).count();
        let waits = |request: &&Request| request.origin().is_some();
        for request in self.requests.iter().flatten().filter(waits) {
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
        let num_with_parent = self.requests.iter().flatten().filter(follows).count();
        for (what, counted, expected) in [
            ("are queued", self.queue.len(), num_queued),
            ("wait outside the queue", self.num_suspended, num_suspended),
            ("wait for a parent", self.num_with_parent, num_with_parent),
            ("are preempted", self.queue.num_preempted(), num_preempted),
            ("have a share", self.queue.shares.num_live(), num_live),
            ("tokens wait", self.num_waiting_tokens, num_tokens),
        ] {
            ensure!(counted == expected, "{expected} {what}, {counted} counted");
        }
        Ok(())
    }

    fn check_running(&self) -> Result<(), Violation> {
        let runs = |request: &&Request| matches!(request.state, State::Running { .. });
        let num_running = self.requests.iter().flatten().filter(runs).count();
        let listed = self
            .running
            .iter()
            .filter_map(|&slot| self.requests[slot as usize].as_ref());
        ensure!(
            listed.filter(runs).count() == num_running && self.running.len() == num_running,
            "{num_running} requests run, {} are listed",
            self.running.len()
        );
        Ok(())
    }

    fn check_request_state(&self, request: &Request) -> Result<(), Violation> {
        let id = request.id.0;
        let named = self.in_flight.iter().flat_map(|step| &step.items);
        let named = named.filter(|item| {
            self.requests[item.slot as usize]
                .as_ref()
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
            request.drafts.len()
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
}
