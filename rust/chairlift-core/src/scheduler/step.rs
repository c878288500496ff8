//! Planning a step: who runs goes on, then who waits may join.

use super::{Item, Scheduler, Step, StepId, budget::Budget, live, slot_of};
use crate::{
    Nanos,
    cost_model::Work,
    plan::{LAST_SAMPLED, Plan},
    policy::{Gate, Moment},
    request::{Slot, State},
    shares::PROMPT_COST,
    waits::Cause,
};

/// What `schedule` decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The plan is to be run, and answered by `update` or `fail`.
    Run(StepId),
    /// There is nothing to run; at `wake_at` there may be, even if nothing is called before.
    Idle { wake_at: Option<Nanos> },
}

impl Scheduler {
    /// Plans the next step into `plan`, which is cleared.
    ///
    /// The budget goes to running requests in order of admission, a prefill leaving one token for each decode behind
    /// it, and what is left to those who join. With a budget of time chunks are cut to it ([`super::budget`]).
    ///
    /// ```text
    /// budget  [ A 1 | B 1 | C chunk of 120 | D 1 | E joins, chunk of 133 ]
    /// ```
    ///
    /// With several tenants prompts of those below their share go first ([`super::crowd`]).
    ///
    /// What is left then goes to drafts ([`Scheduler::draft`]).
    pub fn schedule(&mut self, now: Nanos, plan: &mut Plan) -> Next {
        plan.clear();
        self.waits.pass(now);
        if self.in_flight.len() >= self.config.steps_in_flight {
            return Next::Idle { wake_at: None };
        }
        self.expire(now);
        self.planned = Work::default();
        let mut items = self.spare_items.pop().unwrap_or_default();
        let mut gate_opens = None;
        let (mut budget, is_short) = self.schedule_running(now, plan, &mut items);
        if is_short {
            // Who joins right after a preemption would take the very blocks that were just won.
            self.waits.hold(Cause::Blocks, None);
        } else {
            gate_opens = self.admit(now, &mut budget, plan, &mut items);
        }
        self.schedule_crowd(now, &mut budget, plan, &mut items);
        self.schedule_drafts(budget, plan, &mut items);
        if items.is_empty() {
            self.spare_items.push(items);
            let wake_at = [gate_opens, self.deadlines.next()]
                .into_iter()
                .flatten()
                .min();
            return Next::Idle { wake_at };
        }
        self.rows
            .drain_newly_free()
            .for_each(|row| plan.free_row(row));
        self.kv.tell_swaps(plan);
        self.num_steps += 1;
        let id = StepId(self.num_steps);
        self.in_flight.push_back(Step {
            id,
            items,
            work: self.planned,
            planned_at: now,
        });
        Next::Run(id)
    }

    /// Returns the budget that is left, and whether blocks ran short.
    fn schedule_running(
        &mut self,
        now: Nanos,
        plan: &mut Plan,
        items: &mut Vec<Item>,
    ) -> (Budget, bool) {
        let decodes = self.survey();
        let (tokens, time) = (self.config.max_num_batched_tokens, self.config.step_budget);
        let mut budget = Budget::new(tokens, time, &self.costs, decodes);
        let mut is_short = false;
        let crowd = self.crowd(now);
        let (mut i, mut end) = (0, self.running.len());
        while i < end {
            let slot = self.running[i];
            if self.steps_back(crowd.as_ref(), slot, items) {
                self.crowding.push(slot);
                i += 1;
                continue;
            }
            let request = live(&mut self.requests, slot);
            let (start, pending) = (request.num_computed, request.num_pending());
            let count = match pending {
                0 | 1 => pending,
                _ => budget.chunk(&self.costs, start, pending),
            };
            let is_scheduled = loop {
                if count == 0 || self.schedule_tokens(now, slot, count, plan, items) {
                    break true;
                }
                if let Some(suspended) = self.youngest_idle() {
                    let count = self.unseat(suspended);
                    i -= if suspended < i { count } else { 0 };
                    end -= count.min(end.saturating_sub(suspended));
                    continue;
                }
                is_short = true;
                if let Some((is_decode, count)) = self.take_from_cheapest(i + 1, end) {
                    end -= count;
                    if is_decode {
                        budget.give_back();
                    }
                    continue;
                }
                // What a step in flight names keeps its blocks: the youngest sits the next step out, and can be preempted
                // after. Nobody gives up its own blocks while a step is in flight: its end may bring what is missing.
                end -= 1;
                if end > i {
                    if self.is_decode(self.running[end]) {
                        budget.give_back();
                    }
                } else if self.in_flight.is_empty() {
                    self.unlist(i);
                    self.preempt(slot);
                }
                break false;
            };
            match (is_scheduled, pending) {
                (false, 1) => budget.give_back(),
                (true, 2..) => budget.spend(&self.costs, start, count),
                _ => {}
            }
            i += 1;
        }
        (budget, is_short)
    }

    pub(super) fn is_decode(&self, slot: Slot) -> bool {
        self.requests[slot as usize]
            .as_ref()
            .is_some_and(|request| request.num_pending() == 1)
    }

    /// Adds the next `count` tokens of a running request to the step; false if there are no blocks for them.
    pub(super) fn schedule_tokens(
        &mut self,
        now: Nanos,
        slot: Slot,
        count: usize,
        plan: &mut Plan,
        items: &mut Vec<Item>,
    ) -> bool {
        let mut request = live(&mut self.requests, slot);
        let row = request
            .row()
            .expect("invariant: a running request has a row");
        let (start, end) = (request.num_computed, request.num_computed + count);
        if !self.kv.grow(&mut request.table, end) {
            return false;
        }
        if request.account.first_scheduled.is_none() {
            self.book_wait(slot);
            live(&mut self.requests, slot).account.first_scheduled = Some(now);
            self.start_followers(now, slot);
            request = live(&mut self.requests, slot);
        }
        for (source, target) in self.kv.take_copies() {
            plan.copy(source, target);
        }
        if std::mem::take(&mut request.is_moved) {
            plan.assign(row, slot, request.index, start);
        }
        request
            .table
            .tell(|group, column, block| plan.set_block(group, row, column, block));
        let samples = end == request.num_tokens();
        let is_last_sampled = request.num_unknown > 0 || request.last_token_is_sampled;
        if is_last_sampled && samples && count == 1 {
            plan.schedule(row, &[LAST_SAMPLED]);
        } else {
            plan.schedule(row, &request.tokens[start..end]);
        }
        if samples {
            plan.sample();
            request.num_unknown += 1;
        }
        self.planned = self.planned.and(Work::of(start, count));
        request.num_computed = end;
        request.in_flight += 1;
        items.push(Item {
            slot,
            num_samples: u32::from(samples),
            end,
        });
        true
    }

    /// A running request loses row and blocks and waits, at the front unless it is suspended. What it had published may be
    /// found again, and what is copied to host memory.
    pub(super) fn preempt(&mut self, slot: Slot) {
        self.swap_out(slot);
        self.roll_back(slot);
    }

    /// The same, if its blocks cannot be trusted.
    pub(super) fn roll_back(&mut self, slot: Slot) {
        self.book_wait(slot);
        self.unseat_followers(slot);
        let request = live(&mut self.requests, slot);
        debug_assert_eq!(request.in_flight, 0, "what a step names is not taken away");
        self.kv.release(&mut request.table);
        self.rows.release(
            request
                .row()
                .expect("invariant: a running request has a row"),
        );
        self.needs_sweep = true;
        request.num_lost += request.num_computed;
        request.num_computed = 0;
        request.last_token_is_sampled = false;
        (request.is_moved, request.comes_back) = (false, false);
        request.drafts.clear();
        request.account.num_preemptions += 1;
        self.num_preemptions += 1;
        self.wait(slot);
    }

    /// Lets waiting requests join while rows, budget, blocks and the policy allow, in order: the head is never passed.
    /// Returns when the policy's answer changes by itself, and notes what stopped the head.
    fn admit(
        &mut self,
        now: Nanos,
        budget: &mut Budget,
        plan: &mut Plan,
        items: &mut Vec<Item>,
    ) -> Option<Nanos> {
        let (mut limit, whole_batch, opens) = match self.gate(now) {
            Gate::Open { limit, whole_batch } => (limit, whole_batch, None),
            Gate::Closed { wake_at } => (0, false, wake_at),
        };
        let batch_size = limit;
        let (mut cause, mut turn) = (Cause::Step, None);
        while let Some(head) = self.queue.front() {
            let slot = slot_of(&self.requests, head).expect("invariant: who is queued is live");
            let Some(slot) = self.next_to_join(now, slot) else {
                let head = live(&mut self.requests, slot);
                (cause, turn) = (Cause::Row, Some(head.tenant));
                break;
            };
            let request = live(&mut self.requests, slot);
            let (rejoins, tenant) = (request.is_preempted(), request.tenant);
            // The first of a batch may be larger than the batch.
            let num_rows = request.num_rows();
            if rejoins || !self.goes_before_the_crowd(now, tenant) {
                self.schedule_crowd(now, budget, plan, items);
            }
            let is_full = limit == 0 || (num_rows > limit && limit < batch_size);
            let joined = if is_full && !rejoins {
                Err(Cause::Policy)
            } else if budget.is_spent(&self.costs) && !whole_batch {
                Err(Cause::Budget)
            } else {
                self.join(slot, plan)
            };
            if let Err(reason) = joined {
                cause = reason;
                // The preempted go before all tenants, and the policy's gate is closed to all.
                turn = (!rejoins && cause != Cause::Policy).then_some(tenant);
                break;
            }
            limit = limit.saturating_sub(if rejoins { 0 } else { num_rows });
            let request = live(&mut self.requests, slot);
            let start = request.num_computed;
            let count = budget.chunk(&self.costs, start, request.num_pending());
            if count > 0 {
                let scheduled = self.schedule_tokens(now, slot, count, plan, items);
                assert!(
                    scheduled,
                    "invariant: the blocks of all its tokens are promised"
                );
                budget.spend(&self.costs, start, count);
            }
        }
        self.waits.hold(cause, turn);
        opens
    }

    fn gate(&mut self, now: Nanos) -> Gate {
        // Rows of ended requests that a step in flight names are part of the batch still, those of the suspended are not: a
        // batch of which nobody may go on is over.
        let num_active = self.rows.num_used() - self.num_idle;
        if num_active == 0 {
            self.rows.release_held();
        }
        let batch_is_open = num_active > 0 || self.queue.num_preempted() > 0;
        let mut moment = Moment {
            now,
            batch_is_open,
            num_waiting: 0,
            oldest: now,
            flushed: false,
        };
        if !batch_is_open && self.config.policy.holds_rows() {
            // More than a full batch need not be looked at.
            for id in self.queue.new_requests().take(self.config.max_num_seqs) {
                let slot = slot_of(&self.requests, id).expect("invariant: who is queued is live");
                let request = live(&mut self.requests, slot);
                moment.num_waiting += request.num_rows();
                moment.oldest = moment.oldest.min(request.account.arrival);
                moment.flushed |= id < self.flushed_before;
            }
        }
        self.config.policy.gate(moment)
    }

    /// Gives the head of the queue a row, with those who follow it, the columns that are computed, and the promise of the
    /// rest.
    ///
    /// # Errors
    /// What it lacks: a row, or blocks.
    fn join(&mut self, slot: Slot, plan: &mut Plan) -> Result<(), Cause> {
        let missing_rows = self.missing_rows(slot);
        if missing_rows > self.num_idle {
            return Err(Cause::Row);
        }
        let request = live(&mut self.requests, slot);
        let rejoins = request.is_preempted();
        let reads = self.config.prefix_cache && request.cache_read;
        let num_hits = if reads {
            self.kv.lookup(&mut request.table, &request.tokens)
        } else {
            0
        };
        // Whoever was preempted comes back only when everyone who runs, itself included, could take one more token;
        // otherwise it would lose its row again at once and compute the same tokens over and over.
        let headroom = if rejoins {
            let own = self.kv.room_for_next(request.tokens.len());
            (self.running.len() - self.num_idle) * self.kv.num_groups() + own
        } else {
            0
        };
        let start = self.kv.start(&request.table, num_hits);
        let num_swapped = request.table.swapped.num_tokens;
        let has_room = missing_rows == 0 && self.seat(slot, num_hits, headroom)
            || self.win_room(slot, num_hits, headroom) && self.seat(slot, num_hits, headroom);
        if !has_room {
            return Err(Cause::Blocks);
        }
        let row = self.rows.take().expect("invariant: a row was free");
        self.stop_waiting(slot);
        let request = live(&mut self.requests, slot);
        request.state = State::Running { row };
        request.num_computed = start;
        if rejoins {
            let recomputed = request.num_lost.saturating_sub(start);
            request.account.num_recomputed_tokens += recomputed;
            self.num_recomputed_tokens += recomputed as u64;
            request.num_lost = 0;
            // Unless the prefix cache knows as much.
            if start > 0 && start == num_swapped {
                request.comes_back = true;
                self.num_swapped_tokens += (start - num_hits * self.config.block_size) as u64;
            }
        } else {
            request.account.cached_tokens = start;
            let cost = PROMPT_COST * (request.num_prompt - start) as u64;
            self.queue.shares.charge(request.tenant, cost);
            if reads {
                self.num_prefix_queries +=
                    ((request.num_prompt - 1) / self.config.block_size) as u64;
                self.num_prefix_hits += num_hits as u64;
            }
        }
        plan.assign(row, slot, request.index, start);
        request
            .table
            .tell(|group, column, block| plan.set_block(group, row, column, block));
        self.running.push(slot);
        self.begin_wait(slot);
        self.seat_followers(slot, plan);
        Ok(())
    }

    /// Gives a request the blocks that it joins with; false if they cannot be had.
    fn seat(&mut self, slot: Slot, num_hits: usize, headroom: usize) -> bool {
        let request = live(&mut self.requests, slot);
        self.kv
            .admit(&mut request.table, &request.tokens, num_hits, headroom)
    }
}
