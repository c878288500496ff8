//! Rows that tenants beyond their share yield to requests of tenants below it: in time, no more than they have beyond it, and
//! not without progress between two preemptions.

use std::collections::{BTreeMap, BTreeSet};

use chairlift_core::policy::Policy;

use crate::{
    batch::Before,
    client::{Client, State},
    row_usage::RowUsage,
    tally::Sight,
    world::{Checked, World, ensure},
};

/// Tokens between two preemptions of a sequence by which it yields.
const MIN_PROGRESS: usize = 16;

/// Sequences that yield their blocks at once, beside those that yield their rows.
const MAX_FOR_BLOCKS: usize = 16;

impl World {
    /// The requests among those preempted that yielded, if all of them may have done so: a request of a tenant below its share
    /// waits, and their tenants have theirs. `num_victims` are those that could go on.
    pub(crate) fn yielded(
        &self,
        before: &Before,
        preempted: &[usize],
        num_victims: usize,
    ) -> Vec<usize> {
        let config = &self.scenario.config;
        if num_victims == 0 || config.policy != Policy::Continuous {
            return Vec::new();
        }
        if config.steps_in_flight > 1 {
            return preempted.to_vec();
        }
        let usage = &before.row_usage;
        let claims = |&index: &usize| {
            let client = &self.clients[index];
            let waits = client.is_fresh() || client.is_preempted();
            waits && usage.stays_within(client.tenant, 1 + self.waiting_siblings(index).len())
        };
        let victims = preempted.iter().copied();
        let victims: Vec<_> = victims
            .filter(|index| !before.has_idle(*index) && !self.clients[*index].waits_for_parent)
            .collect();
        let keeps_share = |&index: &usize| usage.has_share(self.clients[index].tenant);
        let is_explained = self.live.iter().any(claims) && victims.iter().all(keeps_share);
        if is_explained { victims } else { Vec::new() }
    }

    /// A request that is admitted in a step in which others yielded is one for which they may: its tenant is below its share.
    /// What yielded has made progress since its last preemption.
    pub(crate) fn check_yielded(&mut self, index: usize, before: &mut Before) -> Checked {
        if before.yielded.is_empty() || self.scenario.config.steps_in_flight > 1 {
            return Ok(());
        }
        let client = &self.clients[index];
        let num_rows = 1 + self.waiting_siblings(index).len();
        let is_unsettled = self.attempt.is_repeated || self.attempt.is_unsettled;
        ensure!(
            is_unsettled || before.row_usage.stays_within(client.tenant, num_rows),
            "#{} is the first to be admitted where others yield, and its tenant has its share",
            client.label
        );
        let yielded = std::mem::take(&mut before.yielded);
        ensure!(
            is_unsettled || yielded.len() <= num_rows.max(MAX_FOR_BLOCKS),
            "{} requests yield for {num_rows} rows",
            yielded.len()
        );
        self.tally.add(Sight::Yielded, yielded.len() as u64);
        for &other in &yielded {
            let other = &self.clients[other];
            let count = other.progress_before.unwrap_or(MIN_PROGRESS);
            ensure!(
                is_unsettled || count >= MIN_PROGRESS,
                "#{} yields again after {count} tokens",
                other.label
            );
        }
        Ok(())
    }

    /// For certain the suspended requests that keep their rows would do in place of the requests that have yielded. What has
    /// yielded may do without them, and then they keep their rows, too.
    pub(crate) fn suspended_would_do(&self, before: &Before) -> bool {
        let config = &self.scenario.config;
        let stays = before.suspended.iter().copied();
        let stays: Vec<_> = stays.filter(|&index| !before.has_idle(index)).collect();
        let is_known = |&index: &usize| self.clients[index].num_sequences == 1;
        if before.newcomers.is_empty() || config.prefix_cache || !stays.iter().all(is_known) {
            return false;
        }
        let load = self.scheduler.load();
        let num_free_rows = config.max_num_seqs - load.num_rows_held;
        let held = stays
            .iter()
            .map(|&index| self.num_held(&self.clients[index]));
        // A request that resumes leaves a block to each that runs.
        let headroom = (self.running.len() + 1) * config.kv_groups.len();
        let needed = before.num_released + self.num_promised() + headroom;
        num_free_rows + stays.len() >= before.num_yielded
            && load.num_free_blocks + held.sum::<usize>() >= needed
    }

    /// A request of a tenant below its share does not wait for a row in a step in which a tenant beyond its share has more
    /// than it could yield.
    pub(crate) fn check_none_lacks_its_share(
        &mut self,
        before: &Before,
        num_tokens: usize,
    ) -> Checked {
        let config = &self.scenario.config;
        let live = || self.live.iter().copied();
        if config.steps_in_flight > 1
            || config.policy != Policy::Continuous
            || before.has_preempted
            || before.has_preempted_idle()
            || !before.newcomers.is_empty()
            || num_tokens >= config.max_num_batched_tokens
            || live().any(|index| self.clients[index].is_preempted())
        {
            return Ok(());
        }
        let usage = self.row_usage();
        let passes = self.reserves_rows();
        let next = live().filter(|&index| {
            let client = &self.clients[index];
            client.is_fresh() && (!passes || !usage.has_share(client.tenant))
        });
        let next: Vec<_> = next.collect();
        let num_rows = |index: usize| 1 + self.waiting_siblings(index).len();
        let is_within =
            |&index: &usize| usage.stays_within(self.clients[index].tenant, num_rows(index));
        let Some(max_rows) = next.iter().map(|&index| num_rows(index)).max() else {
            return Ok(());
        };
        if !next.iter().all(is_within) || !self.have_blocks(&next) {
            return Ok(());
        }
        let num_free = config.max_num_seqs - self.scheduler.load().num_rows_held;
        let num_missing = max_rows.saturating_sub(num_free);
        let num_yielding = self.num_yielding(before);
        ensure!(
            num_missing == 0 || num_yielding < num_missing,
            "{} requests of tenants below their share wait, and {num_yielding} rows could be yielded",
            next.len()
        );
        Ok(())
    }

    /// A tenant without any row gets one that is free, once while those before it wait, where the first of these wants more
    /// rows than are free and than its share.
    pub(crate) fn check_none_is_without_a_row(
        &mut self,
        before: &Before,
        num_tokens: usize,
    ) -> Checked {
        let config = &self.scenario.config;
        let live = || self.live.iter().copied();
        if config.steps_in_flight > 1
            || config.policy != Policy::Continuous
            || before.has_preempted
            || before.has_preempted_idle()
            || num_tokens >= config.max_num_batched_tokens
            || live().any(|index| self.clients[index].is_preempted())
        {
            return Ok(());
        }
        let usage = self.row_usage();
        let fresh: Vec<_> = live()
            .filter(|&index| self.clients[index].is_fresh())
            .collect();
        let tenants: BTreeSet<_> = fresh
            .iter()
            .map(|&index| self.clients[index].tenant)
            .collect();
        let mut without = tenants.into_iter().filter(|&tenant| !usage.has_row(tenant));
        let waits = without.find(|&tenant| self.is_next_without_a_row(&usage, &fresh, tenant));
        ensure!(
            waits.is_none(),
            "tenant {} has no row and waits, and enough are free",
            waits.unwrap_or_default()
        );
        Ok(())
    }

    /// Each request of the tenant that waits fits, and may pass those before it.
    fn is_next_without_a_row(&self, usage: &RowUsage, fresh: &[usize], tenant: u8) -> bool {
        let num_free = self.scenario.config.max_num_seqs - self.scheduler.load().num_rows_held;
        let num_rows = |index: usize| 1 + self.waiting_siblings(index).len();
        let of = |index: usize| self.clients[index].tenant;
        let is_within = |index: usize| usage.stays_within(of(index), num_rows(index));
        let counters = &self.service.counters;
        let (of_tenant, others): (Vec<_>, Vec<_>) =
            fresh.iter().partition(|&&index| of(index) == tenant);
        let others = others.into_iter();
        let others = others.filter(|&index| counters.count(of(index)) <= counters.count(tenant));
        let others: Vec<_> = others.collect();
        let lowest = others.iter().map(|&index| counters.count(of(index))).min();
        let is_passed = |&index: &usize| {
            let goes_itself = !usage.has_row(of(index)) && is_within(index);
            let is_wide = num_rows(index) > num_free && !is_within(index);
            let is_head = Some(counters.count(of(index))) == lowest;
            counters.may_pass(tenant, of(index)) && !goes_itself && (is_wide || !is_head)
        };
        let may_go = |&index: &usize| is_within(index) && num_rows(index) <= num_free;
        of_tenant.iter().all(may_go) && others.iter().all(is_passed) && self.have_blocks(&of_tenant)
    }

    /// The free blocks are enough for each of these, beside what is promised.
    fn have_blocks(&self, waiting: &[usize]) -> bool {
        let needed = waiting.iter().map(|&index| {
            let num_tokens = self.clients[index].num_tokens();
            self.num_blocks_of(num_tokens)
        });
        needed.max().unwrap_or(0) + self.num_promised() <= self.scheduler.load().num_free_blocks
    }

    /// Blocks that running requests lack for the tokens that they have, at most.
    fn num_promised(&self) -> usize {
        let config = &self.scenario.config;
        let left = |&index: &usize| {
            let client = &self.clients[index];
            let num_full = client.num_computed / config.block_size * config.kv_groups.len();
            self.num_blocks_of(client.num_tokens())
                .saturating_sub(num_full)
        };
        self.running.iter().map(left).sum()
    }

    /// Blocks of so many tokens, in all KV groups.
    fn num_blocks_of(&self, num_tokens: usize) -> usize {
        let config = &self.scenario.config;
        num_tokens.div_ceil(config.block_size) * config.kv_groups.len()
    }

    /// Sequences that could yield their rows: of each tenant as many as it has beyond its share.
    fn num_yielding(&self, before: &Before) -> usize {
        let usage = self.row_usage();
        let (mut may_yield, mut stay): (BTreeMap<u8, usize>, BTreeMap<u8, usize>) =
            Default::default();
        for &index in &self.running {
            let client = &self.clients[index];
            let is_oldest = before.running.first() == Some(&index);
            let computes_for_others = !self.waiting_siblings(index).is_empty();
            if client.is_suspended() || client.state != State::Running {
                *stay.entry(client.tenant).or_default() += 1;
            } else if !is_oldest && !computes_for_others && has_progress(client) && client.started {
                *may_yield.entry(client.tenant).or_default() += 1;
            }
        }
        let counts = may_yield.into_iter().map(|(tenant, count)| {
            let num_left = stay.get(&tenant).copied().unwrap_or(0);
            count.min(usage.num_spare(tenant, num_left))
        });
        counts.sum()
    }
}

pub(crate) fn has_progress(client: &Client) -> bool {
    let now = client.answer.num_prompt + client.num_output;
    let before = client.num_at_preemption;
    before.is_none_or(|before| now >= before + MIN_PROGRESS)
}
