//! Work is conserved: a request that fits beside what a step computes is in it.

use chairlift_core::policy::Policy;

use crate::{
    batch::Before,
    client::Client,
    oracle::first_visible,
    tally::Sight,
    world::{Checked, World, ensure},
};

impl World {
    /// If every waiting request fits beside what the step computes, the next is in the step, whichever it is.
    pub(crate) fn check_work_is_conserved(
        &mut self,
        before: &Before,
        num_tokens: usize,
    ) -> Checked {
        let waiting = self.waiting();
        // Where a row is reserved, only a request of a tenant below its share is certain to get it.
        let usage = self.row_usage();
        let has_share = |index: &usize| usage.has_share(self.clients[*index].tenant);
        let is_preempted = |&index: &usize| self.clients[index].is_preempted();
        let is_kept = (waiting.iter().all(has_share) || waiting.iter().any(is_preempted))
            && waiting.iter().any(|&index| self.takes_reserved_row(index));
        self.tally.add(Sight::RowsKept, u64::from(is_kept));
        let config = &self.scenario.config;
        let load = self.scheduler.load();
        let is_idle = |index: &usize| self.clients[*index].is_idle();
        let suspended: Vec<_> = self.running.iter().copied().filter(is_idle).collect();
        let num_rows = |index: usize| 1 + self.waiting_siblings(index).len();
        let num_idle: usize = suspended.iter().map(|&index| num_rows(index)).sum();
        let num_busy = load.num_rows_held - num_idle;
        let max_rows = waiting.iter().map(|&index| num_rows(index)).max();
        let is_full = num_tokens == config.max_num_batched_tokens
            || num_busy + max_rows.unwrap_or(0) > config.max_num_seqs;
        if config.steps_in_flight > 1
            || config.policy != Policy::Continuous
            || before.has_preempted
            || is_full
            || is_kept
        {
            return Ok(());
        }
        let num_blocks = |tokens: usize| tokens.div_ceil(config.block_size);
        let left = |client: &Client| {
            let written = num_blocks(client.num_computed);
            self.num_needed(num_blocks(client.num_tokens()).saturating_sub(written))
        };
        // What the suspended hold can be had, where it is known to be theirs alone.
        let mut given = 0;
        if !config.prefix_cache {
            let held = |&index: &usize| self.num_held(&self.clients[index]);
            let alone = |index: &&usize| self.clients[**index].num_sequences == 1;
            given = suspended.iter().filter(alone).map(held).sum();
        }
        let promised = self.running.iter().filter(|index| {
            // With a prefix cache promises of the suspended count, too: whether they are enough alone is not known.
            config.prefix_cache || !suspended.contains(index)
        });
        let promised: usize = promised.map(|&index| left(&self.clients[index])).sum();
        let num_runnable = self.running.len() - num_idle;
        let free = load.num_free_blocks + given;
        let needed = |&index: &usize| {
            let client = &self.clients[index];
            // A preempted request resumes only if every request that runs, itself included, could take one more token.
            let ahead = usize::from(client.is_preempted());
            let headroom = ahead * num_runnable * config.kv_groups.len();
            self.num_needed(num_blocks(client.num_tokens() + ahead)) + headroom + promised
        };
        let Some(needed) = waiting.iter().map(needed).max() else {
            return Ok(());
        };
        ensure!(
            needed > free,
            "{} requests wait though a row is free and {needed} of {free} free blocks suffice for each",
            waiting.len()
        );
        Ok(())
    }

    /// The requests of which one is next: the preempted ones, or else the new ones.
    pub(crate) fn waiting(&self) -> Vec<usize> {
        let live = |waits: fn(&Client) -> bool| {
            let live = self.live.iter().copied();
            live.filter(|&index| waits(&self.clients[index])).collect()
        };
        let preempted: Vec<_> = live(Client::is_preempted);
        let usage = self.row_usage();
        let has_share = |&index: &usize| usage.has_share(self.clients[index].tenant);
        // Those of tenants below their share pass preempted ones of others.
        let may_be_passed = preempted.iter().any(has_share);
        match self.scenario.config.policy {
            _ if preempted.is_empty() => live(Client::is_fresh),
            Policy::Continuous if may_be_passed => [preempted, live(Client::is_fresh)].concat(),
            _ => preempted,
        }
    }

    /// Blocks that so many more blocks take, in all KV groups: of a window never more than it sees and steps write.
    fn num_needed(&self, num_blocks: usize) -> usize {
        let config = &self.scenario.config;
        let written = config.max_num_batched_tokens * config.steps_in_flight;
        let max_blocks = |window: u32| {
            let tokens = window as usize - 1 + written;
            1 + (tokens - 1).div_ceil(config.block_size)
        };
        let windows = config.kv_groups.iter().map(|group| group.window);
        windows
            .map(|window| window.map_or(num_blocks, |window| num_blocks.min(max_blocks(window))))
            .sum()
    }

    /// Blocks of what a request has computed and may still see.
    pub(crate) fn num_held(&self, client: &Client) -> usize {
        self.num_held_at(client.num_computed)
    }

    pub(crate) fn num_held_at(&self, num_computed: usize) -> usize {
        let config = &self.scenario.config;
        let first = |group| first_visible(group, num_computed) / config.block_size;
        let end = num_computed.div_ceil(config.block_size);
        config
            .kv_groups
            .iter()
            .map(|&group| end - first(group))
            .sum()
    }
}
