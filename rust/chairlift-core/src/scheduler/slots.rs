//! The requests by slot, and which sequences belong together.
//!
//! A request with several sequences computes its prompt once. Each sequence has a slot, a row, tokens and text of its own.
//! The first is the parent: it alone is in the queue, and when it is admitted its siblings get rows, too, and wait for it.
//! When the prompt is computed they fork: a sibling takes the parent's blocks up to the last token of the prompt, which it
//! computes again to draw its own first token.
//!
//! ```text
//! blocks of the prompt     0      1      2
//! parent                 [ full | full | part ]
//! siblings              [ full | full | part ]   shared; the last one is copied when it is first written
//! ```
//!
//! From then on each stops, is preempted, resumes and ends alone; until then they are preempted and resume together. An
//! error ends them all. The credit of a request is dealt out evenly, and what a sequence leaves of it goes to the others.

use std::collections::HashMap;

use crate::{
    error::{Violation, ensure},
    ids::{RequestId, Slot},
    request::Request,
};
use foldhash::fast::FixedState;

/// Owns the requests.
#[derive(Clone)]
pub(super) struct Slots {
    requests: Vec<Option<Request>>,
    free: Vec<Slot>,
    num_added: u64,
    /// The sequences that have not ended of each request with several, in order.
    groups: HashMap<RequestId, Vec<Slot>, FixedState>,
}

impl Slots {
    pub(super) fn new(num_slots: usize) -> Self {
        Self {
            requests: vec![None; num_slots],
            free: (0..num_slots as Slot).rev().collect(),
            num_added: 0,
            groups: HashMap::default(),
        }
    }

    /// The request in a slot, which may have ended and be named by a step in flight; None if the slot is free.
    pub(super) fn get(&self, slot: Slot) -> Option<&Request> {
        self.requests.get(slot as usize)?.as_ref()
    }

    /// The request in a slot that is listed somewhere.
    pub(super) fn listed(&self, slot: Slot) -> &Request {
        self.get(slot)
            .expect("invariant: a listed slot holds a request")
    }

    /// The request in a slot that is listed somewhere, to change it.
    pub(super) fn live(&mut self, slot: Slot) -> &mut Request {
        self.requests[slot as usize]
            .as_mut()
            .expect("invariant: a listed slot holds a request")
    }

    /// The slot of a sequence that has not ended.
    pub(super) fn find(&self, id: RequestId) -> Option<Slot> {
        let slot = (id.0 % self.requests.len() as u64) as Slot;
        let request = self.get(slot)?;
        (request.id == id && request.is_live()).then_some(slot)
    }

    /// The sequence in a slot has not ended.
    pub(super) fn is_live(&self, slot: Slot) -> bool {
        self.get(slot).is_some_and(Request::is_live)
    }

    /// All requests, those included that have ended but for a step in flight.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Request> + '_ {
        self.requests.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Request> + '_ {
        self.requests.iter_mut().flatten()
    }

    /// A bound that is above the ids of all requests so far, and at most those of later ones.
    pub(super) fn next_id(&self) -> RequestId {
        RequestId((self.num_added + 1) * self.requests.len() as u64)
    }

    /// Takes slots for so many sequences, with an id for each; None if there are not as many.
    pub(super) fn take(&mut self, num_sequences: usize) -> Option<Vec<(Slot, RequestId)>> {
        let start = self.free.len().checked_sub(num_sequences)?;
        let slots = self.free.drain(start..).rev();
        let num_slots = self.requests.len() as u64;
        let with_id = slots.map(|slot| {
            self.num_added += 1;
            (
                slot,
                RequestId(self.num_added * num_slots + u64::from(slot)),
            )
        });
        Some(with_id.collect())
    }

    /// Puts a sequence into the slot that was taken for it.
    pub(super) fn put(&mut self, slot: Slot, request: Request) {
        self.requests[slot as usize] = Some(request);
    }

    /// Lends a sequence out of its slot, to change another one beside it; `put` ends that.
    pub(super) fn lend(&mut self, slot: Slot) -> Request {
        self.requests[slot as usize]
            .take()
            .expect("invariant: a listed slot holds a request")
    }

    /// Frees the slot of a sequence that has ended.
    pub(super) fn release(&mut self, slot: Slot) -> Request {
        let request = self.lend(slot);
        debug_assert!(!request.is_live() && request.in_flight == 0);
        self.free.push(slot);
        request
    }

    /// These sequences are one request.
    pub(super) fn form_group(&mut self, request: RequestId, slots: Vec<Slot>) {
        self.groups.insert(request, slots);
    }

    /// Takes a sequence that ends out of its group; true if it is the last.
    pub(super) fn leave_group(&mut self, slot: Slot) -> bool {
        let request = self.live(slot);
        let (owner, parent) = (request.owner, request.parent.take());
        if let Some(parent) = parent {
            self.live(parent).num_siblings -= 1;
        }
        let Some(slots) = self.groups.get_mut(&owner) else {
            return true;
        };
        slots.retain(|&other| other != slot);
        let is_last = slots.is_empty();
        if is_last {
            self.groups.remove(&owner);
        }
        is_last
    }

    /// The sequences of a request that have not ended, in order.
    pub(super) fn sequences(&self, request: RequestId) -> Vec<Slot> {
        match self.groups.get(&request) {
            Some(slots) => slots.clone(),
            None => self.find(request).into_iter().collect(),
        }
    }

    /// The first sequence of a request that has not ended.
    pub(super) fn first_sequence(&self, request: RequestId) -> Option<Slot> {
        let slots = self.groups.get(&request);
        let first = slots.and_then(|slots| slots.first().copied());
        first.or_else(|| self.find(request))
    }

    /// The slot still has a sequence of this request.
    pub(super) fn is_sequence_of(&self, slot: Slot, owner: RequestId) -> bool {
        let request = self.get(slot);
        request.is_some_and(|request| request.owner == owner && request.is_live())
    }

    /// The siblings that wait for a parent to compute the prompt.
    pub(super) fn siblings(&self, parent: Slot) -> Vec<Slot> {
        let request = self.get(parent);
        let request = request.filter(|request| request.num_siblings > 0);
        request.map_or_else(Vec::new, |request| {
            let mut slots = self.sequences(request.owner);
            slots.retain(|&slot| self.listed(slot).parent == Some(parent));
            slots
        })
    }

    /// Each slot is free or used, and each sequence is listed once among those of its request.
    ///
    /// # Errors
    /// Describes the first invariant that does not hold.
    pub(super) fn check_invariants(&self) -> Result<(), Violation> {
        let mut free = vec![false; self.requests.len()];
        for &slot in &self.free {
            ensure!(!free[slot as usize], "slot {slot} is free twice");
            free[slot as usize] = true;
        }
        for (slot, request) in self.requests.iter().enumerate() {
            ensure!(
                free[slot] != request.is_some(),
                "slot {slot} is free and used, or neither"
            );
        }
        let live = || self.iter().filter(|request| request.is_live());
        for sequence in live() {
            self.check_sequence(sequence)?;
        }
        let num_listed: usize = self.groups.values().map(Vec::len).sum();
        let is_of_many = |request: &&Request| self.groups.contains_key(&request.owner);
        let num_sequences = live().filter(is_of_many).count();
        ensure!(
            num_listed == num_sequences,
            "{num_sequences} sequences of several live, {num_listed} are listed"
        );
        Ok(())
    }

    fn check_sequence(&self, sequence: &Request) -> Result<(), Violation> {
        let id = sequence.id.0;
        let group = self.groups.get(&sequence.owner);
        let num_siblings = group.into_iter().flatten().filter(|&&slot| {
            let parent = self.get(slot).and_then(|other| other.parent);
            let parent = parent.and_then(|slot| self.get(slot));
            parent.is_some_and(|parent| parent.id == sequence.id)
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
        let is_listed = group.map_or(is_alone, |slots| {
            let mut sequences = slots.iter().filter_map(|&slot| self.get(slot));
            sequences.any(|other| other.id == sequence.id)
        });
        ensure!(
            is_listed,
            "sequence {id} is not listed among those of its request"
        );
        Ok(())
    }
}
