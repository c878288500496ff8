//! What the sequences of one request do together ([`super::slots`]).

use super::Scheduler;
use crate::{
    ids::{Nanos, Slot},
    plan::Plan,
    request::{Origin, Request, State, add_credit},
};

impl Scheduler {
    /// Gives rows to the siblings of a parent that has just been admitted.
    pub(super) fn admit_siblings(&mut self, parent: Slot, plan: &mut Plan) {
        for slot in self.slots.siblings(parent) {
            let row = self.rows.take().expect("invariant: so many rows were free");
            self.num_with_parent -= 1;
            let request = self.slots.live(slot);
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
        let request = self.slots.live(slot);
        request.has_started = true;
        request.stats.first_scheduled = Some(now);
        let waits = request.stats.wait_times;
        for sibling in self.slots.siblings(slot) {
            let sibling = self.slots.live(sibling);
            sibling.has_started = true;
            sibling.stats.first_scheduled = Some(now);
            sibling.stats.wait_times = waits;
        }
    }

    /// The prompt is computed, in a step that has succeeded: the siblings go on from its last token.
    pub(super) fn fork(&mut self, parent: Slot) {
        let siblings = self.slots.siblings(parent);
        let mut request = self.slots.lend(parent);
        request.num_siblings = 0;
        for slot in siblings {
            let sibling = self.slots.live(slot);
            sibling.parent = None;
            sibling.num_computed = sibling.num_prompt - 1;
            self.kv
                .fork(&request.table, &mut sibling.table, sibling.num_computed);
        }
        self.slots.put(parent, request);
    }

    /// Deals more credit out to the sequences of a request: evenly, and the remainder to those that have least left.
    pub(super) fn deal_credit(&mut self, slots: &[Slot], credit: u64) {
        if slots.is_empty() || credit == 0 {
            return;
        }
        let left = |slot: &Slot| {
            let request = self.slots.get(*slot);
            request.map_or(0, |request| {
                request.credit_end.saturating_sub(request.tokens.len())
            })
        };
        let mut order: Vec<_> = slots.iter().map(|slot| (left(slot), *slot)).collect();
        // The first of equal sequences comes first.
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
        let was_suspended = self.slots.live(slot).is_suspended();
        let origin = self.stop_waiting(slot);
        change(self.slots.live(slot));
        self.wait_again(slot, was_suspended, origin);
    }

    /// Ends what `stop_waiting` began.
    pub(super) fn wait_again(&mut self, slot: Slot, was_suspended: bool, origin: Option<Origin>) {
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
}
