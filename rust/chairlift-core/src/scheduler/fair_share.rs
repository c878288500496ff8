//! Fair shares of the rows: where tenants compete, prompts of those below their share are computed first.
//!
//! ```text
//! a has its share of the rows (all, by the number of tenants that are here or were lately); b has not
//!
//! budget  | decodes | oldest | prompts of b that have begun | b is admitted, if served no more | prompts of a | ... |
//! ```
//!
//! Each prompt but those that are deferred leaves up to half of what is left to other tenants below their share that have
//! none in the step yet: to prompts that have begun, and to the next one that waits. So none waits until the long prompt of
//! another tenant is computed.
//!
//! Otherwise a tenant that sends little would get a row at once and wait for prompts that others have begun. Its virtual
//! token counter bounds how long it makes them wait: each request that is admitted is charged for its prompt.

use super::{MIN_CHUNK, Scheduler, step::StepBuilder};
use crate::{
    ids::{Nanos, Slot, Tenant},
    request::Request,
};

/// The rows that run, by tenant.
pub(super) struct RowUsage {
    num_used: Vec<usize>,
    num_tenants: usize,
    num_rows: usize,
}

impl RowUsage {
    /// Counts the rows of each tenant; None if there is one tenant.
    pub(super) fn of(scheduler: &Scheduler, now: Nanos) -> Option<Self> {
        let shares = &scheduler.queue.shares;
        if shares.num_tenants() < 2 {
            return None;
        }
        let mut num_used = vec![0; shares.num_places()];
        for &slot in &scheduler.running {
            let request = scheduler.request(slot);
            // What this step has preempted is on the list still.
            num_used[request.tenant as usize] += usize::from(request.is_running());
        }
        Some(Self {
            num_used,
            num_tenants: shares.expected(now).count(),
            num_rows: scheduler.config.max_num_seqs,
        })
    }

    /// Counts shares of the rows in use instead of all rows: blocks are short, and not rows.
    pub(super) fn of_rows_in_use(self) -> Self {
        let num_rows = self.num_used.iter().sum();
        Self { num_rows, ..self }
    }

    /// The tenant gives up rows.
    pub(super) fn leave(&mut self, tenant: Tenant, num_rows: usize) {
        self.num_used[tenant as usize] -= num_rows;
    }

    pub(super) fn num_used(&self, tenant: Tenant) -> usize {
        self.num_used[tenant as usize]
    }

    /// The tenant has its fair share, or more.
    pub(super) fn has_share(&self, tenant: Tenant) -> bool {
        self.is_share(self.num_used(tenant))
    }

    /// The tenant has its fair share once it has `more` rows more.
    pub(super) fn has_share_beside(&self, tenant: Tenant, more: usize) -> bool {
        self.is_share(self.num_used(tenant) + more)
    }

    /// The tenant has its fair share without one of its rows.
    pub(super) fn can_spare(&self, tenant: Tenant) -> bool {
        self.num_used(tenant) > 1 && self.is_share(self.num_used(tenant) - 1)
    }

    fn is_share(&self, num_rows: usize) -> bool {
        num_rows * self.num_tenants >= self.num_rows
    }
}

/// Tokens of prompts of tenants below their share that this step has not come to, but would compute if it had room for all:
/// none that the prefix cache knows, and none behind a state that is saved.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Tokens of prompts that have begun, by tenant; empty if there is nothing to share.
    begun: Vec<usize>,
    /// Tenant of the request that is admitted next, and how many tokens its first step computes.
    next: Option<(Tenant, usize)>,
}

impl StepBuilder<'_> {
    /// What prompts of tenants below their share lack, before the step has any; nothing if no prompt has begun.
    pub(super) fn wanted(&mut self, usage: &RowUsage) -> Wanted {
        let mut running = self.scheduler.running.iter();
        if !running.any(|&slot| self.scheduler.request(slot).is_in_prompt()) {
            return Wanted::default();
        }
        let mut begun = vec![0; usage.num_used.len()];
        for index in 0..self.scheduler.running.len() {
            let slot = self.scheduler.running[index];
            let request = self.scheduler.slots.live(slot);
            if request.is_in_prompt() && !usage.has_share(request.tenant) {
                let num_hits = request.num_hits_of_restart(&self.scheduler.kv);
                let num_known = num_hits * self.scheduler.config.block_size;
                let start = request.num_computed + num_known;
                let (tenant, left) = (request.tenant, request.num_pending() - num_known);
                begun[tenant as usize] += self.tokens_to_stop(slot, start, left);
            }
        }
        let next = self.newcomer(usage);
        let next = next.and_then(|slot| self.tokens_of_newcomer(slot));
        Wanted { begun, next }
    }

    /// The waiting request that is admitted next, if it is of a tenant below its share and has a row.
    fn newcomer(&self, usage: &RowUsage) -> Option<Slot> {
        let scheduler = &*self.scheduler;
        if scheduler.config.policy.holds_rows() {
            return None;
        }
        let head = scheduler.slots.find(scheduler.queue.front()?)?;
        let slot = self.next_to_admit(head)?;
        let request = scheduler.request(slot);
        let has_row = !usage.has_share(request.tenant)
            && self.passes_deferred(request, usage)
            && scheduler.rows.num_missing(request.num_rows()) <= self.num_idle_rows;
        has_row.then_some(slot)
    }

    /// Tenant of a waiting request, and how many tokens its first step computes; None if its blocks cannot be had.
    fn tokens_of_newcomer(&mut self, slot: Slot) -> Option<(Tenant, usize)> {
        let scheduler = &mut *self.scheduler;
        let request = scheduler.slots.live(slot);
        let num_hits = match self.claim.looked_up {
            Some((other, num_hits)) if other == slot => num_hits,
            _ => request.num_hits(&scheduler.kv),
        };
        let start = scheduler.kv.start(&request.table, num_hits);
        let (tenant, left) = (request.tenant, request.tokens.len() - start);
        let num_running = scheduler.running.len() - self.num_idle_rows;
        let headroom = request.headroom(&scheduler.kv, num_running);
        scheduler.num_idle_for_blocks(slot, num_hits, headroom)?;
        Some((tenant, self.tokens_to_stop(slot, start, left)))
    }

    /// Whether a waiting request will be admitted before the prompts that the step will defer.
    fn passes_deferred(&self, request: &Request, usage: &RowUsage) -> bool {
        let running = self.scheduler.running.iter();
        let running = running.filter(|slot| !self.claim.left_out.contains(slot));
        let running = running.map(|&slot| self.scheduler.request(slot));
        let in_step = running.filter(|other| other.num_pending() > 0);
        // The first request of a step is never deferred.
        let deferred = in_step
            .skip(1)
            .filter(|other| other.is_in_prompt() && usage.has_share(other.tenant));
        let mut deferred = deferred.map(|other| other.tenant).peekable();
        deferred.peek().is_none()
            || !request.is_preempted() && self.is_served_no_more(request.tenant, deferred)
    }

    /// Whether a tenant was served no more than each of these.
    fn is_served_no_more(&self, tenant: Tenant, mut others: impl Iterator<Item = Tenant>) -> bool {
        let shares = &self.scheduler.queue.shares;
        others.all(|other| shares.served(tenant) <= shares.served(other))
    }

    /// The most tokens that a running request may have in the step, whose turn it is: a prompt leaves what tenants want that
    /// the step has not come to, but no more than half of what is left.
    pub(super) fn part_of(&mut self, slot: Slot) -> usize {
        let request = self.scheduler.request(slot);
        let (tenant, start, wanted) = (request.tenant, request.num_computed, &mut self.wanted);
        if !request.is_in_prompt() || wanted.begun.is_empty() {
            return usize::MAX;
        }
        wanted.begun[tenant as usize] = 0;
        wanted.next = wanted.next.filter(|&(other, _)| other != tenant);
        let next = wanted.next.map_or(0, |(_, num_tokens)| num_tokens);
        let num_wanted = wanted.begun.iter().sum::<usize>() + next;
        let left = self.budget.chunk(&self.scheduler.costs, start, usize::MAX);
        let max = left.saturating_sub(num_wanted).max(left.div_ceil(2));
        max.max(MIN_CHUNK)
    }

    /// Whether a prompt that has begun is deferred: its tenant has its share. The first request of a step never is.
    pub(super) fn is_deferred(&self, usage: Option<&RowUsage>, slot: Slot) -> bool {
        let Some(usage) = usage else { return false };
        let request = self.scheduler.request(slot);
        let is_in_prompt = request.is_in_prompt();
        !self.items.is_empty() && is_in_prompt && usage.has_share(request.tenant)
    }

    /// Whether a waiting request of this tenant may be admitted before deferred prompts go on.
    pub(super) fn goes_before_deferred(&self, tenant: Tenant) -> bool {
        let others = self.deferred.iter();
        let others = others.map(|&slot| self.scheduler.request(slot).tenant);
        let usage = || RowUsage::of(self.scheduler, self.now);
        !self.deferred.is_empty()
            && self.is_served_no_more(tenant, others)
            && usage().is_some_and(|usage| !usage.has_share(tenant))
    }

    /// Deferred prompts go on with the budget that is left.
    pub(super) fn schedule_deferred(&mut self) {
        for slot in std::mem::take(&mut self.deferred) {
            // Only a request that a failed step took its blocks from may lack some.
            self.is_short |= !self.schedule_chunk(slot, usize::MAX);
        }
    }
}
