//! Fairness between tenants: how far they may be apart, and whose prompts go first.

use std::collections::{BTreeSet, HashMap};

use chairlift_core::{policy::Policy, scheduler::MIN_CHUNK};

use crate::{
    batch::Before,
    client::Client,
    device::RowRun,
    service::Newcomer,
    tally::Sight,
    world::{Checked, World, ensure},
};

impl World {
    /// While a tenant waits no other is served more than it, beyond a bound that no traffic moves.
    pub(crate) fn check_service(&mut self) -> Checked {
        // A reserved row is for a tenant below its share, however much it was served.
        if self.reserves_rows() {
            return Ok(());
        }
        let clients = self.live.iter().map(|&index| &self.clients[index]);
        let waiting = clients.filter(|client| client.is_fresh());
        let waiting: BTreeSet<_> = waiting.map(|client| client.tenant).collect();
        let overtaken = self.service.overtaken(&waiting);
        ensure!(
            overtaken.is_none(),
            "(tenant that waits, another, what that one was served more) are {:?}",
            overtaken.unwrap_or_default()
        );
        Ok(())
    }

    /// A request begins to wait.
    pub(crate) fn begin_to_wait(&mut self, index: usize) {
        let (client, clients) = (&self.clients[index], &self.clients);
        let others = self.live.iter().copied().filter(|&other| other != index);
        let others: BTreeSet<_> = others
            .filter(|&other| clients[other].is_fresh())
            .map(|other| clients[other].tenant)
            .collect();
        if client.is_fresh() && !others.contains(&client.tenant) {
            let counters = &mut self.service.counters;
            counters.begin_to_wait(client.tenant, others.into_iter());
        }
    }

    /// A request that is about to be admitted.
    pub(crate) fn newcomer(&self, index: usize) -> Newcomer {
        let client = &self.clients[index];
        Newcomer {
            tenant: client.tenant,
            is_below_share: client.is_fresh() && !self.row_usage().has_share(client.tenant),
            counters: self.service.counters.clone(),
        }
    }

    /// Prompts that had begun of tenants with their share, but the oldest request's, get what others leave: prompts of
    /// tenants below it that had begun are in the step whole, and only requests of such tenants that were served no more are
    /// admitted before them. Returns how many of their tokens the waiting requests may claim, if all of them may.
    pub(crate) fn check_deferred(&mut self, before: &Before, runs: &[RowRun]) -> Checked<usize> {
        let config = &self.scenario.config;
        let is_odd = config.steps_in_flight > 1 || config.step_budget.is_some();
        if is_odd || before.has_preempted || before.has_preempted_idle() {
            return Ok(0);
        }
        let runs: HashMap<_, _> = runs
            .iter()
            .map(|run| (self.by_slot[run.slot], run))
            .collect();
        let mut others = before.running.iter();
        others.find(|index| runs.contains_key(index));
        let (mut num_tokens, mut tenants, mut cut) = (0, BTreeSet::new(), None);
        for &index in others {
            let client = &self.clients[index];
            let count = runs.get(&index).map_or(0, |run| {
                let count = run.end - run.start - run.num_drafts;
                let is_chunk = count > 1 || has_prompt_left(client);
                let is_prompt = run.start < client.answer.num_prompt && is_chunk;
                if is_prompt { count } else { 0 }
            });
            if before.row_usage.has_share(client.tenant) && (count > 0 || has_prompt_left(client)) {
                num_tokens += count;
                tenants.insert(client.tenant);
                cut = cut.or(self.is_cut(client).then_some(client.label));
            }
        }
        self.tally.add(Sight::Deferred, u64::from(num_tokens > 0));
        if num_tokens > 0 {
            self.check_none_is_cut_below_share(before)?;
        }
        let passed = |newcomer: &&Newcomer| newcomer.may_pass(&tenants);
        let num_passed = before.newcomers.iter().filter(passed).count();
        ensure!(
            cut.is_none()
                || num_passed == before.newcomers.len()
                || self.scenario.config.policy != Policy::Continuous,
            "a request is admitted before the prompt of #{} is computed",
            cut.unwrap_or_default()
        );
        if !tenants.is_empty() {
            self.tally.add(Sight::Passed, num_passed as u64);
        }
        let waiting = self.waiting();
        let mut waiting = waiting.iter().map(|&index| self.newcomer(index));
        let may_claim = num_passed == before.newcomers.len()
            && waiting.all(|newcomer| newcomer.may_pass(&tenants));
        Ok(if may_claim { num_tokens } else { 0 })
    }

    /// A prompt leaves half of what is left to begun prompts of other tenants below their share that have none in the step
    /// before, if these want as much.
    pub(crate) fn check_parts(&self, before: &Before, runs: &[RowRun]) -> Checked {
        let config = &self.scenario.config;
        let is_odd = config.steps_in_flight > 1 || config.step_budget.is_some();
        let has_lost = before.has_preempted || before.has_preempted_idle();
        if is_odd || has_lost || before.has_rolled_back {
            return Ok(());
        }
        let runs: HashMap<_, _> = runs
            .iter()
            .map(|run| (self.by_slot[run.slot], run))
            .collect();
        let count = |index: &usize| {
            let run = runs.get(index);
            run.map_or(0, |run| run.end - run.start - run.num_drafts)
        };
        let is_decode = |index: &&usize| {
            let run = runs.get(*index);
            count(index) == 1 && run.is_some_and(|run| !run.sampled.is_empty())
        };
        // What the step had to compute of its prompt, where that was more than a token.
        let wanted = |index: &usize| {
            let client = &self.clients[*index];
            let run = runs.get(index);
            let samples = run.is_some_and(|run| !run.sampled.is_empty());
            let is_prompt =
                run.map_or(client.num_computed, |run| run.start) < client.answer.num_prompt;
            let num_left = if samples { 0 } else { self.num_left(client) };
            let num_wanted = count(index) + num_left;
            if is_prompt && num_wanted > 1 {
                num_wanted
            } else {
                0
            }
        };
        let num_decodes = before.running.iter().filter(is_decode).count();
        let mut left = config.max_num_batched_tokens.saturating_sub(num_decodes);
        let has_share = |index: &usize| before.row_usage.has_share(self.clients[*index].tenant);
        let (mut is_first, mut visited) = (true, BTreeSet::new());
        for (place, index) in before.running.iter().enumerate() {
            let (count, was_first) = (count(index), is_first);
            is_first &= count == 0;
            let client = &self.clients[*index];
            let is_prompt = |run: &&RowRun| run.start < client.answer.num_prompt;
            if is_decode(&index)
                || !runs.get(index).is_some_and(is_prompt)
                || has_share(index) && !was_first
            {
                continue;
            }
            visited.insert(client.tenant);
            let others = before.running[place + 1..].iter();
            let others = others.filter(|other| {
                let is_visited = visited.contains(&self.clients[**other].tenant);
                !is_visited && !has_share(other)
            });
            let num_wanted: usize = others.map(wanted).sum();
            ensure!(
                count <= MIN_CHUNK.max(left.div_ceil(2)) || count + num_wanted <= left,
                "#{} computes {count} of {left} tokens, and prompts of other tenants want {num_wanted}",
                client.label
            );
            left = left.saturating_sub(count);
        }
        Ok(())
    }

    fn check_none_is_cut_below_share(&self, before: &Before) -> Checked {
        for &index in &before.running {
            let client = &self.clients[index];
            ensure!(
                before.row_usage.has_share(client.tenant) || !self.is_cut(client),
                "the prompt of #{} is cut for those of tenants that have their share",
                client.label
            );
        }
        Ok(())
    }

    /// Tokens of its prompt are left that could have been in the step.
    fn is_cut(&self, client: &Client) -> bool {
        has_prompt_left(client) && self.num_left(client) > 0
    }

    /// Tokens that a request lacks after a step and could have had in it, at least: of a model with recurrent states those up
    /// to the next place where its state may be saved, or shared with siblings, and none where it stopped there.
    fn num_left(&self, client: &Client) -> usize {
        let config = &self.scenario.config;
        let (num_computed, num_pending) = (client.num_computed, client.num_pending());
        if config.state_snapshots.is_none() {
            return num_pending;
        }
        let last_alone = client.answer.num_prompt - 1;
        let is_stop = num_computed.is_multiple_of(config.block_size) || num_computed == last_alone;
        if is_stop && client.last_step == self.tally.steps() {
            return 0;
        }
        let to_boundary = config.block_size - num_computed % config.block_size;
        let to_last = last_alone.checked_sub(num_computed);
        let to_last = to_last.filter(|&left| left > 0).unwrap_or(num_pending);
        num_pending.min(to_boundary).min(to_last)
    }
}

fn has_prompt_left(client: &Client) -> bool {
    client.num_computed < client.answer.num_prompt && client.num_pending() > 0
}
