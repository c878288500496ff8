//! Sequence groups: a request with several sequences computes its prompt once.
//!
//! Each sequence has a slot, a row, tokens and text of its own. The first is the parent: it alone is in the queue, and when
//! it is admitted its siblings get rows, too, and wait for it. When the prompt is computed they fork: a sibling takes the
//! parent's blocks up to the last token of the prompt, which it computes again to draw its own first token.
//!
//! ```text
//! blocks of the prompt     0      1      2
//! parent                 [ full | full | part ]
//! siblings              [ full | full | part ]   shared; the last one is copied when it is first written
//! ```
//!
//! From then on each stops, is preempted, resumes and ends alone; until then they are preempted and resume together. An
//! error ends them all. The credit of a request is dealt out evenly, and what a sequence leaves of it goes to the others.

use super::{Scheduler, live, slot_of};
use crate::{
    ids::{Nanos, RequestId, Slot},
    plan::Plan,
    request::{Origin, Request, State, add_credit},
};

impl Scheduler {
    /// The sequences of a request that have not ended, in order.
    pub(super) fn sequences(&self, request: RequestId) -> Vec<Slot> {
        match self.groups.get(&request) {
            Some(slots) => slots.clone(),
            None => slot_of(&self.requests, request).into_iter().collect(),
        }
    }

    /// The siblings that wait for a parent to compute the prompt.
    pub(super) fn siblings(&self, parent: Slot) -> Vec<Slot> {
        let request = self.requests[parent as usize].as_ref();
        let request = request.filter(|request| request.num_siblings > 0);
        request.map_or_else(Vec::new, |request| {
            let mut slots = self.sequences(request.owner);
            slots.retain(|&slot| self.request(slot).parent == Some(parent));
            slots
        })
    }

    /// Gives rows to the siblings of a parent that has just been admitted.
    pub(super) fn admit_siblings(&mut self, parent: Slot, plan: &mut Plan) {
        for slot in self.siblings(parent) {
            let row = self.rows.take().expect("invariant: so many rows were free");
            self.num_with_parent -= 1;
            let request = live(&mut self.requests, slot);
            request.state = State::Running { row };
            plan.assign(
                row,
                slot,
                request.index,
                request.num_prompt - 1,
                request.adapter,
            );
            self.running.push(slot);
        }
    }

    /// Tokens of a request are in a step for the first time: its siblings start with it.
    pub(super) fn start(&mut self, now: Nanos, slot: Slot) {
        self.record_wait(slot);
        let request = live(&mut self.requests, slot);
        request.has_started = true;
        request.stats.first_scheduled = Some(now);
        let waits = request.stats.wait_times;
        for sibling in self.siblings(slot) {
            let sibling = live(&mut self.requests, sibling);
            sibling.has_started = true;
            sibling.stats.first_scheduled = Some(now);
            sibling.stats.wait_times = waits;
        }
    }

    /// The prompt is computed, in a step that has succeeded: the siblings go on from its last token.
    pub(super) fn fork(&mut self, parent: Slot) {
        let siblings = self.siblings(parent);
        let mut request = self.requests[parent as usize]
            .take()
            .expect("invariant: a parent lives");
        request.num_siblings = 0;
        for slot in siblings {
            let sibling = live(&mut self.requests, slot);
            sibling.parent = None;
            sibling.num_computed = sibling.num_prompt - 1;
            self.kv
                .fork(&request.table, &mut sibling.table, sibling.num_computed);
        }
        self.requests[parent as usize] = Some(request);
    }

    /// Takes a sequence that ends out of its group; true if it is the last.
    pub(super) fn leave_group(&mut self, slot: Slot) -> bool {
        let request = live(&mut self.requests, slot);
        let (owner, parent) = (request.owner, request.parent.take());
        if let Some(parent) = parent {
            live(&mut self.requests, parent).num_siblings -= 1;
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

    /// Deals more credit out to the sequences of a request: evenly, and the remainder to those that have least left.
    pub(super) fn deal_credit(&mut self, slots: &[Slot], credit: u64) {
        if slots.is_empty() || credit == 0 {
            return;
        }
        let left = |slot: &Slot| {
            let request = self.requests[*slot as usize].as_ref();
            request.map_or(0, |request| {
                request.credit_end.saturating_sub(request.tokens.len())
            })
        };
        let mut order: Vec<_> = slots.iter().map(|slot| (left(slot), *slot)).collect();
        // Of equals the first sequence.
        order.sort_by_key(|&(left, _)| left);
        let num_sequences = slots.len() as u64;
        for (i, (_, slot)) in order.into_iter().enumerate() {
            let more = credit / num_sequences + u64::from((i as u64) < credit % num_sequences);
            self.alter(slot, |request| {
                request.credit_end = add_credit(request.credit_end, more);
            });
        }
    }

    /// Changes something on which the place of a request depends, and whether it has one.
    fn alter(&mut self, slot: Slot, change: impl FnOnce(&mut Request)) {
        let was_suspended = live(&mut self.requests, slot).is_suspended();
        let origin = self.stop_waiting(slot);
        change(live(&mut self.requests, slot));
        self.wait_again(slot, was_suspended, origin);
    }

    /// Ends what `stop_waiting` began.
    pub(super) fn wait_again(&mut self, slot: Slot, was_suspended: bool, origin: Option<Origin>) {
        let Some(origin) = origin else {
            self.begin_wait(slot);
            return;
        };
        let request = live(&mut self.requests, slot);
        if was_suspended && !request.is_suspended() && origin == Origin::Fresh {
            let tenant = request.tenant;
            self.queue.arrive(tenant);
        }
        self.wait(slot, origin);
    }
}
