//! The load: what the scheduler holds now, and counts since it started.

use super::Scheduler;
use crate::{
    ids::Slot,
    queue::{WaitCause, Waiter},
    request::Request,
};

/// Passes the counts of [`Load`] to a macro, so that the bindings declare the same ones without a list of their own.
#[macro_export]
macro_rules! with_load_counts {
    ($declare:ident) => {
        $declare! {
            /// Without a row, suspended or not.
            num_waiting: usize,
            num_waiting_tokens: usize,
            /// With a row, suspended or not.
            num_running: usize,
            /// Suspended requests among those without a row, and among those with one.
            num_waiting_suspended: usize,
            num_running_suspended: usize,
            /// Rows in use, rows that stay empty until their batch ends included.
            num_rows_held: usize,
            num_blocks: usize,
            /// Free or evictable.
            num_free_blocks: usize,
            num_cached_blocks: usize,
            /// Written token slots of the blocks in use, shared blocks counted once.
            num_kv_tokens: usize,
            /// Since the start.
            num_preemptions: u64,
            /// Tokens that were computed again after a preemption or a failed step.
            num_recomputed_tokens: u64,
            /// Blocks of the host's pool, and those that hold nothing, now.
            num_host_blocks: usize,
            num_free_host_blocks: usize,
            /// Computed tokens that were swapped in since the start.
            num_swapped_tokens: u64,
            /// Full prompt blocks of admitted requests since the start, and how many of them the prefix cache had.
            num_prefix_queries: u64,
            num_prefix_hits: u64,
            /// Prompt tokens of admitted requests that need not be computed for it, since the start.
            num_prefix_hit_tokens: u64,
            /// Waiting requests by what they wait for; those that wait as they are suspended are `num_waiting_suspended`.
            num_waiting_step: usize,
            num_waiting_row: usize,
            num_waiting_blocks: usize,
            num_waiting_budget: usize,
            num_waiting_policy: usize,
            num_waiting_share: usize,
            /// Snapshots of recurrent states that requests can begin with.
            num_state_snapshots: usize,
        }
    };
}

macro_rules! declare {
    ($($(#[$doc:meta])* $name:ident: $type:ty,)+) => {
        /// A snapshot; all but the counters are of this moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Load {
            $($(#[$doc])* pub $name: $type,)+
        }
    };
}

with_load_counts!(declare);

impl Load {
    /// Counts what a scheduler holds; O(running requests).
    pub(super) fn of(scheduler: &Scheduler) -> Self {
        let kv = &scheduler.kv;
        let block_size = scheduler.config.block_size;
        let num_free_blocks = kv.num_free();
        let num_used = kv.num_blocks() - num_free_blocks;
        let unwritten = |&slot: &Slot| {
            let request = scheduler.slots.get(slot);
            // A block that others own, too, counts for none of them.
            let request = request
                .filter(|request| request.parent.is_none() && !kv.is_tail_shared(&request.table));
            request.map_or(0, |request| {
                request.table.num_indices() * block_size - request.num_computed
            })
        };
        let num_unwritten: usize = scheduler.running.iter().map(unwritten).sum();
        let is_suspended = |slot: &&Slot| {
            let request = scheduler.slots.get(**slot);
            request.is_some_and(Request::is_suspended)
        };
        let by_cause = num_by_cause(scheduler);
        Self {
            num_waiting: scheduler.num_waiting(),
            num_waiting_tokens: scheduler.num_waiting_tokens,
            num_running: scheduler.running.len(),
            num_waiting_suspended: scheduler.num_suspended,
            num_running_suspended: scheduler.running.iter().filter(is_suspended).count(),
            num_rows_held: scheduler.rows.num_occupied(),
            num_blocks: kv.num_blocks(),
            num_free_blocks,
            num_cached_blocks: kv.num_published(),
            num_kv_tokens: num_used * block_size - num_unwritten * kv.num_groups(),
            num_preemptions: scheduler.counters.num_preemptions,
            num_recomputed_tokens: scheduler.counters.num_recomputed_tokens,
            num_host_blocks: scheduler.config.num_host_blocks,
            num_free_host_blocks: kv.num_free_host(),
            num_swapped_tokens: scheduler.counters.num_swapped_tokens,
            num_prefix_queries: scheduler.counters.num_prefix_queries,
            num_prefix_hits: scheduler.counters.num_prefix_hits,
            num_prefix_hit_tokens: scheduler.counters.num_prefix_hit_tokens,
            num_waiting_step: by_cause[WaitCause::Step as usize],
            num_waiting_row: by_cause[WaitCause::Row as usize],
            num_waiting_blocks: by_cause[WaitCause::Blocks as usize],
            num_waiting_budget: by_cause[WaitCause::Budget as usize],
            num_waiting_policy: by_cause[WaitCause::Policy as usize],
            num_waiting_share: by_cause[WaitCause::Share as usize],
            num_state_snapshots: kv.num_state_snapshots(),
        }
    }
}

/// Waiting requests by what they wait for, in the order of [`WaitCause::ALL`]; O(1).
fn num_by_cause(scheduler: &Scheduler) -> [usize; WaitCause::ALL.len()] {
    let (queue, clock) = (&scheduler.queue, &scheduler.wait_clock);
    let mut counts = [0; WaitCause::ALL.len()];
    let cause = clock.cause(Waiter::Preempted);
    let num_next = match clock.turn() {
        None => queue.num_new(),
        Some(tenant) => queue.num_new_of(tenant),
    };
    counts[cause as usize] += queue.num_preempted() + scheduler.num_with_parent + num_next;
    counts[WaitCause::Share as usize] += queue.num_new() - num_next;
    counts[WaitCause::Suspended as usize] += scheduler.num_suspended;
    counts
}
