//! Admission: a waiting request gets a row, the blocks that are computed already, and the promise of the rest.

use super::step::StepBuilder;
use crate::{
    ids::{Nanos, Slot},
    kv_cache::{Inserted, KvCache},
    policy::{Gate, Moment},
    queue::{PROMPT_COST, WaitCause},
    request::{Request, RunnerView, State},
};

impl StepBuilder<'_> {
    /// Admits waiting requests while rows, budget, blocks and the policy allow, in order: only a row that is reserved for
    /// others lets a request pass the head ([`super::reserved_rows`]). Returns when the policy's answer changes by itself,
    /// and notes what stopped the head.
    pub(super) fn admit_waiting(&mut self) -> Option<Nanos> {
        if self.is_short {
            // A request that is admitted now would take the very blocks that a preemption has just won.
            self.scheduler.wait_clock.set_cause(WaitCause::Blocks, None);
            return None;
        }
        let (mut limit, whole_batch, opens) = match self.gate() {
            Gate::Open { limit, whole_batch } => (limit, whole_batch, None),
            Gate::Closed { wake_at } => (0, false, wake_at),
        };
        let batch_size = limit;
        let (mut cause, mut turn) = (WaitCause::Step, None);
        while let Some(head) = self.scheduler.queue.front() {
            let head = self.scheduler.slots.find(head);
            let head = head.expect("invariant: a queued request is live");
            let Some(slot) = self.next_to_admit(head) else {
                let tenant = self.scheduler.request(head).tenant;
                (cause, turn) = (WaitCause::Row, Some(tenant));
                break;
            };
            let request = self.scheduler.request(slot);
            let (resumes, tenant) = (request.is_preempted(), request.tenant);
            // The first of a batch may be larger than the batch.
            let num_rows = request.num_rows();
            if resumes || !self.goes_before_deferred(tenant) {
                self.schedule_deferred();
            }
            let is_full = limit == 0 || (num_rows > limit && limit < batch_size);
            let admitted = if is_full && !resumes {
                Err(WaitCause::Policy)
            } else if self.budget.is_spent(&self.scheduler.costs) && !whole_batch {
                Err(WaitCause::Budget)
            } else if self.is_short {
                Err(WaitCause::Blocks)
            } else {
                self.admit(slot)
            };
            if let Err(reason) = admitted {
                cause = reason;
                // Preempted requests go before all tenants, and the policy's gate is closed to all.
                turn = (!resumes && cause != WaitCause::Policy).then_some(tenant);
                break;
            }
            limit = limit.saturating_sub(if resumes { 0 } else { num_rows });
            let has_blocks = self.schedule_chunk(slot, usize::MAX);
            assert!(
                has_blocks,
                "invariant: the blocks of all its tokens are promised"
            );
            if self.claim.claimant.is_some() {
                // What has yielded does not come back in the same step.
                break;
            }
        }
        self.scheduler.wait_clock.set_cause(cause, turn);
        opens
    }

    /// What the policy says about fresh requests.
    fn gate(&mut self) -> Gate {
        let scheduler = &mut *self.scheduler;
        // Rows of ended requests that a step in flight names are part of the batch still, those of suspended requests are
        // not: a batch of which no request may go on is over.
        let num_active = scheduler.rows.num_used() - self.num_idle_rows;
        if num_active == 0 {
            scheduler.rows.release_held();
        }
        let batch_is_open = num_active > 0 || scheduler.queue.num_preempted() > 0;
        let mut moment = Moment {
            now: self.now,
            batch_is_open,
            num_waiting: 0,
            oldest: self.now,
            flushed: false,
        };
        if !batch_is_open && scheduler.config.policy.holds_rows() {
            // More than a full batch need not be looked at.
            let max_rows = scheduler.config.max_num_seqs;
            for id in scheduler.queue.new_requests().take(max_rows) {
                let slot = scheduler.slots.find(id);
                let slot = slot.expect("invariant: a queued request is live");
                let request = scheduler.slots.live(slot);
                moment.num_waiting += request.num_rows();
                moment.oldest = moment.oldest.min(request.stats.arrival);
                moment.flushed |= id < scheduler.flushed_before;
            }
        }
        scheduler.config.policy.gate(moment)
    }

    /// Admits a request with its siblings.
    ///
    /// # Errors
    /// What it lacks: a row, or blocks.
    fn admit(&mut self, slot: Slot) -> Result<(), WaitCause> {
        let scheduler = &mut *self.scheduler;
        let request = scheduler.slots.live(slot);
        let num_missing = scheduler.rows.num_missing(request.num_rows());
        if num_missing > self.num_idle_rows {
            return Err(WaitCause::Row);
        }
        let num_hits = request.num_hits(&scheduler.kv);
        let num_running = scheduler.running.len() - self.num_idle_rows;
        let headroom = request.headroom(&scheduler.kv, num_running);
        let start = scheduler.kv.start(&request.table, num_hits);
        let num_swapped = request.table.num_swapped_tokens();
        let has_blocks = num_missing == 0
            && request.take_blocks(&mut scheduler.kv, num_hits, headroom)
            || self.preempt_suspended_for(slot, num_hits, headroom)
                && self.take_blocks(slot, num_hits, headroom);
        if !has_blocks {
            return Err(WaitCause::Blocks);
        }
        self.run(slot, start, num_hits, num_swapped);
        Ok(())
    }

    /// Gives a request that has its blocks a row, with its siblings, and adds both to the plan.
    fn run(&mut self, slot: Slot, start: usize, num_hits: usize, num_swapped: usize) {
        let (scheduler, plan) = (&mut *self.scheduler, &mut *self.plan);
        let row = scheduler.rows.take().expect("invariant: a row was free");
        let resumes = scheduler.request(slot).is_preempted();
        scheduler.stop_waiting(slot);
        let block_size = scheduler.config.block_size;
        let request = scheduler.slots.live(slot);
        request.state = State::Running { row };
        request.num_computed = start;
        if resumes {
            scheduler.counters.num_recomputed_tokens += request.count_recomputed(start);
            // Unless the prefix cache knows as much.
            if start > 0 && start == num_swapped {
                request.runner_view = RunnerView::SwappingIn;
                scheduler.counters.num_swapped_tokens += (start - num_hits * block_size) as u64;
            }
        } else {
            request.stats.cached_tokens = start;
            let Inserted {
                first, num_indices, ..
            } = request.inserted;
            let behind_first = start.saturating_sub(first * block_size);
            request.stats.transferred_tokens = behind_first.min(num_indices * block_size);
            let cost = PROMPT_COST * (request.num_prompt - start) as u64;
            scheduler.queue.shares.admit(request.tenant, cost);
            if request.cache_read {
                scheduler.counters.num_prefix_queries +=
                    ((request.num_prompt - 1) / block_size) as u64;
                scheduler.counters.num_prefix_hits += num_hits as u64;
                scheduler.counters.num_prefix_hit_tokens += start as u64;
            }
        }
        plan.assign(row, slot, request.index, start, request.adapter);
        request.table.take_updates(|group, block_index, block| {
            plan.set_block(group, row, block_index, block);
        });
        self.load_state(slot, row, start);
        self.scheduler.running.push(slot);
        self.scheduler.begin_wait(slot);
        self.admit_siblings(slot);
    }

    /// Gives rows to the siblings of a parent that has just been admitted.
    fn admit_siblings(&mut self, parent: Slot) {
        let scheduler = &mut *self.scheduler;
        for slot in scheduler.slots.siblings(parent) {
            let row = scheduler.rows.take();
            let row = row.expect("invariant: so many rows were free");
            scheduler.num_with_parent -= 1;
            let request = scheduler.slots.live(slot);
            request.state = State::Running { row };
            self.plan.assign(
                row,
                slot,
                request.index,
                request.num_prompt - 1,
                request.adapter,
            );
            scheduler.running.push(slot);
        }
    }

    /// Gives a request the blocks that it begins with; false if they cannot be had.
    pub(super) fn take_blocks(&mut self, slot: Slot, num_hits: usize, headroom: usize) -> bool {
        let scheduler = &mut *self.scheduler;
        let request = scheduler.slots.live(slot);
        request.take_blocks(&mut scheduler.kv, num_hits, headroom)
    }
}

impl Request {
    /// Counts the leading blocks of its tokens that the prefix cache knows.
    pub(super) fn num_hits(&mut self, kv: &KvCache) -> usize {
        if self.cache_read {
            kv.lookup(&mut self.table, &self.tokens)
        } else {
            0
        }
    }

    /// Counts the leading blocks with which a running request begins again, if its last step has failed.
    pub(super) fn num_hits_of_restart(&mut self, kv: &KvCache) -> usize {
        if self.restarts() {
            self.num_hits(kv)
        } else {
            0
        }
    }

    /// Counts the blocks that must be free beside those that it begins with, where `num_running` requests run.
    ///
    /// A preempted request resumes only when every request that runs, itself included, could take one more token;
    /// otherwise it would lose its row again at once and compute the same tokens over and over. Where none runs it needs no
    /// more than its own blocks, which may be all that there are.
    pub(super) fn headroom(&self, kv: &KvCache, num_running: usize) -> usize {
        if self.is_preempted() && num_running > 0 {
            num_running * kv.num_groups() + kv.room_for_next(self.tokens.len())
        } else {
            0
        }
    }

    /// Takes the blocks that it begins with; false (and nothing changed) if they, and `headroom` beside them, are not free.
    fn take_blocks(&mut self, kv: &mut KvCache, num_hits: usize, headroom: usize) -> bool {
        kv.admit(&mut self.table, &self.tokens, num_hits, headroom)
    }
}
