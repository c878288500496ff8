//! Planning a step: running requests go on, then waiting requests may be admitted.

use super::{
    Item, Scheduler, Step,
    budget::Budget,
    fair_share::{RowUsage, Wanted},
    yielding::Claim,
};
use crate::{
    cost_model::Work,
    ids::{Nanos, Slot, StepId},
    plan::{LAST_SAMPLED, Plan},
    request::RunnerView,
};

/// What `schedule` decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The plan is to be run, and answered by `update` or `fail`.
    Run(StepId),
    /// There is nothing to run; at `wake_at` there may be, even if nothing is called before.
    Idle { wake_at: Option<Nanos> },
}

/// A step while it is planned.
///
/// The running list does not change while a step goes over it: a request that loses its row is skipped, since its state
/// says so, and taken off the list afterwards ([`Scheduler::sweep`]).
pub(super) struct StepBuilder<'a> {
    pub(super) scheduler: &'a mut Scheduler,
    pub(super) now: Nanos,
    pub(super) plan: &'a mut Plan,
    pub(super) budget: Budget,
    pub(super) items: Vec<Item>,
    pub(super) work: Work,
    /// Prompts that let those of other tenants go first, and what is left to those.
    pub(super) deferred: Vec<Slot>,
    pub(super) wanted: Wanted,
    pub(super) claim: Claim,
    /// Running requests from this place on the list on are left out of the step.
    pub(super) end: usize,
    /// Rows of suspended requests that no step in flight names: a request that lacks a row or a block takes them.
    pub(super) num_idle_rows: usize,
    /// A request lacked a block, and no suspended request had one.
    pub(super) is_short: bool,
    /// What the decodes of the running requests take.
    pub(super) decodes: Work,
}

impl<'a> StepBuilder<'a> {
    /// An empty step. Its budget lacks one token for each decode.
    pub(super) fn new(
        scheduler: &'a mut Scheduler,
        now: Nanos,
        plan: &'a mut Plan,
        claim: Claim,
    ) -> Self {
        let (mut decodes, mut num_idle_rows) = (Work::default(), 0);
        for &slot in &scheduler.running {
            let request = scheduler.slots.live(slot);
            match request.num_pending() {
                0 if request.is_idle() => num_idle_rows += request.num_rows(),
                1 if !request.restarts() && !claim.left_out.contains(&slot) => {
                    decodes = decodes.and(Work::sampled(request.num_computed, 1));
                }
                _ => {}
            }
        }
        let config = &scheduler.config;
        let (tokens, time) = (config.max_num_batched_tokens, config.step_budget);
        Self {
            now,
            plan,
            budget: Budget::new(tokens, time, &scheduler.costs, decodes),
            items: scheduler.spare_items.pop().unwrap_or_default(),
            work: Work::default(),
            deferred: Vec::new(),
            wanted: Wanted::default(),
            claim,
            end: scheduler.running.len(),
            num_idle_rows,
            is_short: false,
            decodes,
            scheduler,
        }
    }

    /// Adds the next tokens of the running requests.
    pub(super) fn schedule_running(&mut self) {
        let usage = RowUsage::of(self.scheduler, self.now);
        self.wanted = usage
            .as_ref()
            .map_or_else(Wanted::default, |usage| self.wanted(usage));
        let mut index = 0;
        while index < self.end {
            let slot = self.scheduler.running[index];
            if !self.scheduler.slots.live(slot).is_running() {
                // A request before it has taken its row.
            } else if self.claim.left_out.contains(&slot) {
                // It yields its row when the steps that name it have ended.
            } else if self.is_deferred(usage.as_ref(), slot) {
                self.deferred.push(slot);
            } else {
                self.schedule_next(index, slot);
            }
            index += 1;
        }
        self.scheduler.sweep();
    }

    /// Adds the next tokens of the running request at `index`; if it needs a block, others make room.
    fn schedule_next(&mut self, index: usize, slot: Slot) {
        let is_decode = self.scheduler.slots.live(slot).is_decode();
        let max = if is_decode { 1 } else { self.part_of(slot) };
        loop {
            let has_blocks = if is_decode {
                self.schedule_tokens(slot, 1)
            } else {
                self.schedule_chunk(slot, max)
            };
            if has_blocks || !self.preempt_for(index) {
                return;
            }
        }
    }

    /// Adds as many tokens of a running prompt as the budget has left, `max` at max; false if there are no blocks for them.
    pub(super) fn schedule_chunk(&mut self, slot: Slot, max: usize) -> bool {
        let request = self.scheduler.slots.live(slot);
        let (mut start, pending, restarts) = (
            request.num_computed,
            request.num_pending(),
            request.restarts(),
        );
        if pending == 0 {
            return true;
        }
        let num_hits = request.num_hits_of_restart(&self.scheduler.kv);
        let num_known = num_hits * self.scheduler.config.block_size;
        start += num_known;
        let to_stop = self.tokens_to_stop(slot, start, pending - num_known);
        let max = max.min(to_stop);
        let count = self.budget.chunk(&self.scheduler.costs, start, max);
        if count == 0 {
            return true;
        }
        let work = Work {
            samples: u64::from(count == pending - num_known),
            ..Work::of(start, count)
        };
        let has_blocks =
            (!restarts || self.restart(slot, num_hits)) && self.schedule_tokens(slot, count);
        if has_blocks {
            self.budget.spend(&self.scheduler.costs, work);
        }
        has_blocks
    }

    /// A request whose last step has failed begins again behind the blocks that the prefix cache knows; false if the blocks
    /// of all its tokens cannot be had.
    fn restart(&mut self, slot: Slot, num_hits: usize) -> bool {
        let has_blocks = self.take_blocks(slot, num_hits, 0);
        if has_blocks {
            let block_size = self.scheduler.config.block_size;
            let request = self.scheduler.slots.live(slot);
            request.num_computed = num_hits * block_size;
            request.runner_view = RunnerView::Moved;
        }
        has_blocks
    }

    /// Adds the next `count` tokens of a running request; false if there are no blocks for them.
    fn schedule_tokens(&mut self, slot: Slot, count: usize) -> bool {
        let scheduler = &mut *self.scheduler;
        let request = scheduler.slots.live(slot);
        let row = request
            .row()
            .expect("invariant: a running request has a row");
        let (start, end) = (request.num_computed, request.num_computed + count);
        if !scheduler.kv.grow(&mut request.table, end) {
            return false;
        }
        for (source, target) in scheduler.kv.take_copies() {
            self.plan.copy(source, target);
        }
        let (has_started, has_moved) = (
            request.has_started,
            request.runner_view == RunnerView::Moved,
        );
        if has_moved {
            request.runner_view = RunnerView::Current;
            self.plan
                .assign(row, slot, request.index, start, request.adapter);
            scheduler.counters.num_recomputed_tokens += request.count_recomputed(start);
            self.load_state(slot, row, start);
        }
        if !has_started {
            self.start(slot);
        }
        let saved = self.plan_states(slot, start, end);
        let (scheduler, plan) = (&mut *self.scheduler, &mut *self.plan);
        let request = scheduler.slots.live(slot);
        request.table.take_updates(|group, block_index, block| {
            plan.set_block(group, row, block_index, block);
        });
        let samples = end == request.num_tokens();
        let is_last_sampled =
            request.num_unknown > 0 || request.runner_view == RunnerView::LastSampled;
        if is_last_sampled && samples && count == 1 {
            plan.schedule(row, &[LAST_SAMPLED]);
        } else {
            plan.schedule(row, &request.tokens[start..end]);
        }
        if samples {
            plan.sample();
            request.num_unknown += 1;
        }
        let scored = match &mut request.prompt {
            Some(prompt) => prompt.score(start, end, request.num_prompt),
            None => 0..0,
        };
        let num_scores = scored.len();
        if num_scores > 0 {
            let next = request.tokens[scored.end - 1];
            plan.score(scored.start - 1 - start, num_scores, next);
        }
        self.work = self.work.and(Work {
            samples: u64::from(samples) + num_scores as u64,
            ..Work::of(start, count)
        });
        request.num_computed = end;
        request.in_flight += 1;
        self.items.push(Item {
            slot,
            row,
            is_decode: samples && count == 1 && start >= request.num_prompt,
            num_tokens: count as u32,
            num_samples: u32::from(samples),
            num_scores: num_scores as u32,
            end,
            saved,
        });
        true
    }

    /// Records that tokens of a request are in a step for the first time; its siblings start with it.
    fn start(&mut self, slot: Slot) {
        let (scheduler, now) = (&mut *self.scheduler, self.now);
        scheduler.record_wait(slot);
        let request = scheduler.slots.live(slot);
        request.has_started = true;
        request.stats.first_scheduled = Some(now);
        let waits = request.stats.wait_times;
        for sibling in scheduler.slots.siblings(slot) {
            let sibling = scheduler.slots.live(sibling);
            sibling.has_started = true;
            sibling.stats.first_scheduled = Some(now);
            sibling.stats.wait_times = waits;
        }
    }

    /// Puts the step in flight, or nothing if it is empty: `gate_opens` is when the policy's answer changes by itself.
    pub(super) fn launch(self, gate_opens: Option<Nanos>) -> Next {
        let scheduler = self.scheduler;
        if self.items.is_empty() {
            scheduler.spare_items.push(self.items);
            let wake_at = [gate_opens, scheduler.deadlines.next()]
                .into_iter()
                .flatten()
                .min();
            return Next::Idle { wake_at };
        }
        scheduler.kv.release_copied();
        let swaps = scheduler.kv.take_swaps();
        for (source, target) in swaps.outs {
            self.plan.swap_out(source, target);
        }
        for (source, target) in swaps.ins {
            self.plan.swap_in(source, target);
        }
        scheduler.num_steps += 1;
        let id = StepId(scheduler.num_steps);
        scheduler.in_flight.push_back(Step {
            id,
            items: self.items,
            work: self.work,
            planned_at: self.now,
            preempted: std::mem::take(&mut scheduler.preempted),
        });
        Next::Run(id)
    }
}
