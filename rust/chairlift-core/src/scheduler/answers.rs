//! Requests with several answers: one prompt, computed once.
//!
//! An answer is a request of its own inside the scheduler: slot, row, tokens, text. The first one leads: it alone is in
//! the queue, and when it joins the others get rows, too, and follow. When the prompt is computed they fork: a follower
//! takes the leader's blocks up to the last token of the prompt, which it computes again to draw its own first token.
//!
//! ```text
//! blocks of the prompt     0      1      2
//! leader                 [ full | full | part ]
//! followers              [ full | full | part ]   shared; the last one is copied when it is first written
//! ```
//!
//! From then on each goes its own way: it stops, gives way, comes back and ends alone. An error ends them all. Until then
//! they give way and come back together. The credit of a request is dealt out evenly, and what an answer leaves of it goes
//! to the others.

use super::{Scheduler, live, slot_of};
use crate::{
    ids::{Nanos, RequestId, Slot},
    plan::Plan,
    request::{Origin, Request, State, add_credit},
};

impl Scheduler {
    /// The answers of a request that have not ended, in order.
    pub(super) fn answers(&self, request: RequestId) -> Vec<Slot> {
        match self.families.get(&request) {
            Some(slots) => slots.clone(),
            None => slot_of(&self.requests, request).into_iter().collect(),
        }
    }

    /// Those who follow a request until its prompt is computed.
    pub(super) fn followers(&self, leader: Slot) -> Vec<Slot> {
        let request = self.requests[leader as usize].as_ref();
        let request = request.filter(|request| request.num_followers > 0);
        request.map_or_else(Vec::new, |request| {
            let mut slots = self.answers(request.owner);
            slots.retain(|&slot| slot != leader);
            slots
        })
    }

    /// Seats those who follow a request that has just joined.
    pub(super) fn seat_followers(&mut self, leader: Slot, plan: &mut Plan) {
        for slot in self.followers(leader) {
            let row = self.rows.take().expect("invariant: so many rows were free");
            self.num_following -= 1;
            let request = live(&mut self.requests, slot);
            request.state = State::Running { row };
            plan.assign(row, slot, request.index, request.num_prompt - 1);
            self.running.push(slot);
        }
    }

    /// Tokens of a request are in a step for the first time: its siblings start with it.
    pub(super) fn start(&mut self, now: Nanos, slot: Slot) {
        self.book_wait(slot);
        let request = live(&mut self.requests, slot);
        request.has_started = true;
        request.stats.first_scheduled = Some(now);
        let waits = request.stats.waits;
        for sibling in self.followers(slot) {
            let sibling = live(&mut self.requests, sibling);
            sibling.has_started = true;
            sibling.stats.first_scheduled = Some(now);
            sibling.stats.waits = waits;
        }
    }

    /// The prompt is computed, in a step that has succeeded: whoever follows goes on from its last token.
    pub(super) fn fork(&mut self, leader: Slot) {
        let followers = self.followers(leader);
        let mut request = self.requests[leader as usize]
            .take()
            .expect("invariant: a leader lives");
        request.num_followers = 0;
        for slot in followers {
            let follower = live(&mut self.requests, slot);
            follower.leader = None;
            follower.num_computed = follower.num_prompt - 1;
            self.kv
                .fork(&request.table, &mut follower.table, follower.num_computed);
        }
        self.requests[leader as usize] = Some(request);
    }

    /// Takes an answer that ends out of its request; true if it is the last.
    pub(super) fn leave_family(&mut self, slot: Slot) -> bool {
        let request = live(&mut self.requests, slot);
        let (owner, leader) = (request.owner, request.leader.take());
        if let Some(leader) = leader {
            live(&mut self.requests, leader).num_followers -= 1;
        }
        let Some(slots) = self.families.get_mut(&owner) else {
            return true;
        };
        slots.retain(|&other| other != slot);
        let is_last = slots.is_empty();
        if is_last {
            self.families.remove(&owner);
        }
        is_last
    }

    /// Deals more credit out to the answers of a request: evenly, what is over to those who have least left.
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
        // Of equals the first answer.
        order.sort_by_key(|&(left, _)| left);
        let num_answers = slots.len() as u64;
        for (i, (_, slot)) in order.into_iter().enumerate() {
            let more = credit / num_answers + u64::from((i as u64) < credit % num_answers);
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
