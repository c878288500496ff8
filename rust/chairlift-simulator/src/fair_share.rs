//! Fair shares of the rows, checked from outside: prompts of tenants below their share go first.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chairlift_core::{ABSENCE, policy::Policy};

use crate::{
    batch::Before,
    client::Client,
    device::RowRun,
    shares::Shares,
    tally::Sight,
    world::{Checked, World, ensure},
};

/// The rows of each tenant that has live requests or had some lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowUsage {
    num_used: BTreeMap<u8, usize>,
    num_rows: usize,
}

impl RowUsage {
    pub(crate) fn has_share(&self, tenant: u8) -> bool {
        let num_used = self.num_used.get(&tenant).copied().unwrap_or(0);
        num_used * self.num_used.len() >= self.num_rows
    }

    pub(crate) fn have_all_their_share(&self) -> bool {
        self.num_used.keys().all(|&tenant| self.has_share(tenant))
    }
}

/// A request that is admitted, as it was before.
#[derive(Clone, Debug)]
pub(crate) struct Newcomer {
    tenant: u8,
    /// It never ran, and its tenant is below its share.
    has_claim: bool,
    shares: Shares,
}

impl Newcomer {
    /// Whether it goes before begun prompts of these tenants.
    fn may_pass(&self, tenants: &BTreeSet<u8>) -> bool {
        let served = self.shares.served(self.tenant);
        let mut others = tenants.iter();
        self.has_claim && others.all(|&other| served <= self.shares.served(other))
    }
}

impl World {
    pub(crate) fn row_usage(&self) -> RowUsage {
        let live = self.live.iter().map(|&index| self.clients[index].tenant);
        let left = self.shares.left.iter();
        let lately = left.filter(|&(_, &time)| self.now.saturating_sub(time) < ABSENCE);
        let tenants = live.chain(lately.map(|(&tenant, _)| tenant));
        let mut num_used: BTreeMap<_, _> = tenants.map(|tenant| (tenant, 0)).collect();
        for &index in &self.running {
            *num_used.entry(self.clients[index].tenant).or_default() += 1;
        }
        RowUsage {
            num_used,
            num_rows: self.scenario.config.max_num_seqs,
        }
    }

    /// A request that is about to be admitted.
    pub(crate) fn newcomer(&self, index: usize) -> Newcomer {
        let client = &self.clients[index];
        Newcomer {
            tenant: client.tenant,
            has_claim: client.is_fresh() && !self.row_usage().has_share(client.tenant),
            shares: self.shares.clone(),
        }
    }

    /// The same of what the plan assigns; None for an answer that waits for another's prompt.
    pub(crate) fn newcomer_in(&self, &[_, slot, ..]: &[i32; 6]) -> Option<Newcomer> {
        let index = *self.by_slot.get(slot as usize)?;
        let client = self.clients.get(index)?;
        (!client.waits_for_parent).then(|| self.newcomer(index))
    }

    /// Prompts that had begun of tenants with their share, but the oldest request's, get what others leave: prompts of
    /// tenants below it that had begun are in the step whole, no request is admitted before them that may not, and none that may is left
    /// behind. Gives how many of their tokens the head of the queue may claim.
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
                cut = cut.or(has_prompt_left(client).then_some(client.label));
            }
        }
        self.tally.add(Sight::Deferred, u64::from(num_tokens > 0));
        if num_tokens > 0 {
            self.check_none_is_cut_below_share(before)?;
        }
        let passed = |newcomer: &&Newcomer| newcomer.may_pass(&tenants);
        let num_passed = before.newcomers.iter().filter(passed).count();
        let have_passed = num_passed == before.newcomers.len();
        ensure!(
            have_passed || cut.is_none() || self.scenario.config.policy != Policy::Continuous,
            "a request is admitted before the prompt of #{} is computed",
            cut.unwrap_or_default()
        );
        if !tenants.is_empty() {
            self.tally.add(Sight::Passed, num_passed as u64);
        }
        let head = self.head().map(|index| self.newcomer(index));
        let is_claimed = have_passed && head.is_some_and(|head| head.may_pass(&tenants));
        Ok(if is_claimed { num_tokens } else { 0 })
    }

    fn check_none_is_cut_below_share(&self, before: &Before) -> Checked {
        for &index in &before.running {
            let client = &self.clients[index];
            ensure!(
                before.row_usage.has_share(client.tenant) || !has_prompt_left(client),
                "the prompt of #{} is cut for those of tenants that have their share",
                client.label
            );
        }
        Ok(())
    }
}

fn has_prompt_left(client: &Client) -> bool {
    client.num_computed < client.answer.num_prompt && client.num_pending() > 0
}
