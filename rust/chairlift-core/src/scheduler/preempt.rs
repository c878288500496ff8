//! Preemption: which request gives up its row and blocks when another lacks a block, and what becomes of it.
//!
//! ```text
//! running, in order of admission   [ in the step already | index: needs a block |   candidates   | left out ]
//!                                    never                                     fewest tokens to compute again, per block
//! ```
//!
//! 1. The youngest suspended request, wherever it is on the list.
//! 2. Of the running requests behind the one that lacks a block those of tenants beyond their fair share of the rows in use,
//!    but none that was preempted and made no progress since. If there is none, and the request is such a one itself, it gives
//!    its own row up, unless it is the oldest. Else all.
//! 3. Of these the one that loses least. The loss is counted in tokens, not in time, so that a trace is replayed as it was
//!    recorded. A request that was preempted before is spared while there is another. The oldest is never a candidate, so
//!    that the batch always comes to its end.
//! 4. If steps in flight name all of these, the youngest is left out of this step, and is a candidate in the next.
//!
//! A preempted request waits in front of all that are fresh. It keeps what it has computed in host memory where copying it
//! there and back takes less time than computing it again.

use super::{Scheduler, fair_share::RowUsage, step::StepBuilder};
use crate::{
    cost_model::Work,
    ids::Slot,
    request::{Origin, State},
};

/// Tokens between two preemptions of a sequence by which it yields: each is paid for by progress.
pub(super) const MIN_PROGRESS: usize = 16;

/// What a preemption costs; the request of the least is preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    times_preempted: u32,
    /// Tokens to compute again for each 1,024 blocks that become free.
    per_block: usize,
    num_tokens: usize,
}

impl Cost {
    /// Counts what is lost with a request that has a row.
    pub(super) fn of(scheduler: &Scheduler, slot: Slot) -> Self {
        let request = scheduler.request(slot);
        let num_freed = scheduler.kv.num_released(&request.table);
        let num_tokens = request.num_computed;
        Self {
            times_preempted: request.times_preempted,
            per_block: (num_tokens << 10)
                .checked_div(num_freed)
                .unwrap_or(usize::MAX),
            num_tokens,
        }
    }
}

impl StepBuilder<'_> {
    /// Makes room for the running request at `index`, which lacks a block; false if it gets none in this step, or gave its own
    /// row up.
    pub(super) fn preempt_for(&mut self, index: usize) -> bool {
        if let Some(slot) = self.youngest_idle() {
            self.preempt_idle(slot);
            return true;
        }
        self.is_short = true;
        let (short, candidates) = (self.scheduler.running[index], self.candidates(index));
        if let Some(slot) = self.victim(&candidates) {
            self.withdraw(slot);
            self.scheduler.preempt(slot);
            return slot != short;
        }
        if candidates == [short] {
            // It keeps its blocks while a step in flight names it.
            self.withdraw(short);
            return false;
        }
        // Steps in flight name them all. The request itself keeps its blocks while a step is in flight, whose end may bring
        // what is missing.
        let slot = self.leave_out_youngest(index);
        if self.end == index && self.scheduler.in_flight.is_empty() {
            self.scheduler.preempt(slot);
        }
        self.end > index
    }

    /// Preempts suspended requests, as few as will do and the youngest first, so that the head of the queue can be admitted;
    /// false (and nothing changed) if all of them are not enough.
    pub(super) fn preempt_suspended_for(
        &mut self,
        head: Slot,
        num_hits: usize,
        headroom: usize,
    ) -> bool {
        if self.num_idle_rows == 0 {
            return false;
        }
        let scheduler = &*self.scheduler;
        let Some(for_blocks) = scheduler.num_idle_for_blocks(head, num_hits, headroom) else {
            return false;
        };
        let num_rows = scheduler.request(head).num_rows();
        let missing_rows = scheduler.rows.num_missing(num_rows);
        let idle: Vec<_> = scheduler.idle().collect();
        let mut num_rows = 0;
        let gains_row = |slot: &&Slot| {
            let is_short = num_rows < missing_rows;
            num_rows += scheduler.request(**slot).num_rows();
            is_short
        };
        let for_rows = idle.iter().take_while(gains_row).count();
        for &slot in &idle[..for_blocks.max(for_rows)] {
            self.preempt_idle(slot);
        }
        self.scheduler.sweep();
        true
    }

    /// The youngest suspended request with a row that no step in flight names.
    fn youngest_idle(&self) -> Option<Slot> {
        if self.num_idle_rows == 0 {
            return None;
        }
        self.scheduler.idle().next()
    }

    fn preempt_idle(&mut self, slot: Slot) {
        self.num_idle_rows -= self.scheduler.request(slot).num_rows();
        self.scheduler.preempt(slot);
    }

    /// The requests that may be preempted for the one at `index`, in order of admission, or that one alone.
    fn candidates(&self, index: usize) -> Vec<Slot> {
        let scheduler = &*self.scheduler;
        let running = &scheduler.running;
        let holds_blocks = |slot: &Slot| {
            let request = scheduler.request(*slot);
            request.is_running() && request.parent.is_none()
        };
        let behind = running[index + 1..self.end].iter().copied();
        let mut candidates: Vec<_> = behind.filter(holds_blocks).collect();
        let usage = RowUsage::of(scheduler, self.now);
        let Some(usage) = usage.map(RowUsage::of_rows_in_use) else {
            return candidates;
        };
        let is_beyond = |slot: &Slot| {
            let request = scheduler.request(*slot);
            request.has_progress() && usage.can_spare(request.tenant)
        };
        if candidates.iter().any(is_beyond) {
            candidates.retain(is_beyond);
        } else if is_beyond(&running[index]) && !self.is_oldest(index) {
            candidates = vec![running[index]];
        }
        candidates
    }

    /// No request that runs and may go on was admitted before the one at `index`.
    fn is_oldest(&self, index: usize) -> bool {
        let scheduler = &*self.scheduler;
        let mut before = scheduler.running[..index].iter();
        !before.any(|&slot| {
            let request = scheduler.request(slot);
            request.is_running() && !request.is_suspended()
        })
    }

    /// The candidate of the lowest cost, of equals the youngest, that no step in flight names and that computes its own
    /// prompt.
    fn victim(&self, candidates: &[Slot]) -> Option<Slot> {
        let scheduler = &*self.scheduler;
        let may_go = |slot: &Slot| {
            let request = scheduler.request(*slot);
            request.is_running() && request.in_flight == 0 && request.parent.is_none()
        };
        let candidates = candidates.iter().rev().copied().filter(may_go);
        candidates.min_by_key(|&slot| Cost::of(scheduler, slot))
    }

    /// Leaves the youngest running request from `index` on out of the step.
    fn leave_out_youngest(&mut self, index: usize) -> Slot {
        let mut behind = self.scheduler.running[index..self.end].iter();
        let youngest = behind.rposition(|&slot| self.scheduler.request(slot).is_running());
        self.end = index + youngest.expect("invariant: the request at the index runs");
        let slot = self.scheduler.running[self.end];
        self.withdraw(slot);
        slot
    }

    /// A request is not in the step: if it is a decode, the token and the time that are reserved for it are free.
    fn withdraw(&mut self, slot: Slot) {
        let request = self.scheduler.request(slot);
        if request.is_decode() && !self.claim.left_out.contains(&slot) {
            let decode = Work::sampled(request.num_computed, 1);
            self.budget.give_back(&self.scheduler.costs, decode);
        }
    }
}

impl Scheduler {
    /// The suspended requests with a row that no step in flight names, the youngest first.
    pub(super) fn idle(&self) -> impl Iterator<Item = Slot> + '_ {
        let running = self.running.iter().rev().copied();
        running.filter(|&slot| self.request(slot).is_idle())
    }

    /// How many of the suspended requests, the youngest first, a waiting request needs the blocks of; None: all are not enough.
    pub(super) fn num_idle_for_blocks(
        &self,
        head: Slot,
        num_hits: usize,
        headroom: usize,
    ) -> Option<usize> {
        let head = self.request(head);
        let tables = self.idle().map(|slot| &self.request(slot).table);
        let (table, tokens) = (&head.table, &head.tokens);
        self.kv
            .num_releases(table, tokens, num_hits, headroom, tables)
    }

    /// A running request that no step names loses row and blocks, with its siblings if they wait for its prompt, and waits.
    pub(super) fn preempt(&mut self, slot: Slot) {
        self.swap_out(slot);
        for sibling in self.slots.siblings(slot) {
            self.release_row(sibling);
            self.slots.live(sibling).state = State::WithParent;
            self.num_with_parent += 1;
        }
        self.requeue(slot);
    }

    /// A sequence loses row and blocks, and waits in front of all that are fresh, or outside the queue while it is suspended.
    fn requeue(&mut self, slot: Slot) {
        self.record_wait(slot);
        self.release_row(slot);
        let request = self.slots.live(slot);
        debug_assert_eq!(request.in_flight, 0, "what a step names is not taken away");
        self.kv.release(&mut request.table);
        request.reset_computed();
        request.times_preempted += 1;
        request.yields_from = request.tokens.len() + MIN_PROGRESS;
        request.stats.num_preemptions += 1;
        self.counters.num_preemptions += 1;
        self.preempted.push(request.owner);
        self.wait(slot, Origin::Preempted);
    }

    /// A sibling that waits for its parent loses its row alone: it computes the prompt itself when it gets another, or finds
    /// it in the prefix cache.
    pub(super) fn preempt_sibling(&mut self, slot: Slot) {
        if let Some(parent) = self.slots.live(slot).parent.take() {
            self.slots.live(parent).num_siblings -= 1;
        }
        self.requeue(slot);
    }

    fn release_row(&mut self, slot: Slot) {
        let row = self.slots.live(slot).row();
        let row = row.expect("invariant: a running request has a row");
        self.rows.release(row);
        self.needs_sweep = true;
    }

    /// Copies what a request has computed to host memory if that pays and there is room.
    fn swap_out(&mut self, slot: Slot) {
        let request = self.slots.live(slot);
        let num_blocks = request.table.blocks().count() as u64;
        let both_ways = 2 * num_blocks * self.config.swap_block_time;
        let again = self.costs.added(Work::of(0, request.num_computed));
        if num_blocks > 0 && both_ways as f64 <= again {
            self.kv.swap_out(&mut request.table, request.num_computed);
        }
    }
}
