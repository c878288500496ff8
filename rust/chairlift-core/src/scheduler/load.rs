//! The load: what the scheduler holds now, and counts since it started.

use super::Scheduler;
use crate::{ids::Slot, queue::WaitCause, request::Request};

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
            /// Of each, requests that may not go on: paused, or without credit.
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

impl Scheduler {
    /// A snapshot; O(running requests).
    pub fn load(&self) -> Load {
        let block_size = self.config.block_size;
        let num_free_blocks = self.kv.num_free();
        let num_used = self.kv.num_blocks() - num_free_blocks;
        let unwritten = |&slot: &Slot| {
            let request = self.slots.get(slot);
            // A block that others own, too, counts for none of them.
            let request = request.filter(|request| {
                request.parent.is_none() && !self.kv.is_tail_shared(&request.table)
            });
            request.map_or(0, |request| {
                request.table.num_indices() * block_size - request.num_computed
            })
        };
        let num_unwritten: usize = self.running.iter().map(unwritten).sum();
        let is_suspended = |slot: &&Slot| {
            let request = self.slots.get(**slot);
            request.is_some_and(Request::is_suspended)
        };
        let by_cause = self.num_by_cause();
        Load {
            num_waiting: self.num_waiting(),
            num_waiting_tokens: self.num_waiting_tokens,
            num_running: self.running.len(),
            num_waiting_suspended: self.num_suspended,
            num_running_suspended: self.running.iter().filter(is_suspended).count(),
            num_rows_held: self.rows.num_occupied(),
            num_blocks: self.kv.num_blocks(),
            num_free_blocks,
            num_cached_blocks: self.kv.num_published(),
            num_kv_tokens: num_used * block_size - num_unwritten * self.kv.num_groups(),
            num_preemptions: self.counters.num_preemptions,
            num_recomputed_tokens: self.counters.num_recomputed_tokens,
            num_host_blocks: self.config.num_host_blocks,
            num_free_host_blocks: self.kv.num_free_host(),
            num_swapped_tokens: self.counters.num_swapped_tokens,
            num_prefix_queries: self.counters.num_prefix_queries,
            num_prefix_hits: self.counters.num_prefix_hits,
            num_prefix_hit_tokens: self.counters.num_prefix_hit_tokens,
            num_waiting_step: by_cause[WaitCause::Step as usize],
            num_waiting_row: by_cause[WaitCause::Row as usize],
            num_waiting_blocks: by_cause[WaitCause::Blocks as usize],
            num_waiting_budget: by_cause[WaitCause::Budget as usize],
            num_waiting_policy: by_cause[WaitCause::Policy as usize],
            num_waiting_share: by_cause[WaitCause::Share as usize],
            num_state_snapshots: self.kv.num_state_snapshots(),
        }
    }
}
