//! Fair shares of the rows: where tenants compete, prompts of those below their share are computed first.
//!
//! ```text
//! a has its share of the rows (all, by the number of tenants that are here or were lately); b has not
//!
//! budget  | decodes | oldest | prompts of b that have begun | b is admitted, if served no more | prompts of a | ... |
//! ```
//!
//! Otherwise a tenant that sends little would get a row at once and wait for prompts that others have begun. Its virtual
//! token counter bounds how long it makes them wait: each request that is admitted is charged for its prompt.

use super::{Scheduler, step::StepBuilder};
use crate::ids::{Nanos, Slot, Tenant};

/// The rows by tenant.
pub(super) struct RowUsage {
    pub(super) num_used: Vec<usize>,
    pub(super) num_tenants: usize,
    pub(super) num_rows: usize,
}

impl RowUsage {
    /// The tenant has its fair share, or more.
    pub(super) fn has_share(&self, tenant: Tenant) -> bool {
        self.num_used[tenant as usize] * self.num_tenants >= self.num_rows
    }

    /// The same where blocks are short and not rows: shares are those of the rows in use.
    pub(super) fn of_rows_in_use(self) -> Self {
        let num_rows = self.num_used.iter().sum();
        Self { num_rows, ..self }
    }
}

impl StepBuilder<'_> {
    /// Whether a prompt that has begun is deferred: its tenant has its share. The first request of a step never is.
    pub(super) fn is_deferred(&self, usage: Option<&RowUsage>, slot: Slot) -> bool {
        let Some(usage) = usage else { return false };
        let request = self.scheduler.request(slot);
        let is_in_prompt = request.num_computed < request.num_prompt && request.num_pending() > 1;
        !self.items.is_empty() && is_in_prompt && usage.has_share(request.tenant)
    }

    /// Whether a waiting request of this tenant may be admitted before deferred prompts go on.
    pub(super) fn goes_before_deferred(&self, tenant: Tenant) -> bool {
        let shares = &self.scheduler.queue.shares;
        let mut others = self.deferred.iter();
        let usage = || self.scheduler.row_usage(self.now);
        !self.deferred.is_empty()
            && others.all(|&slot| {
                let other = self.scheduler.request(slot).tenant;
                shares.served(tenant) <= shares.served(other)
            })
            && usage().is_some_and(|usage| !usage.has_share(tenant))
    }

    /// Deferred prompts go on with the budget that is left.
    pub(super) fn schedule_deferred(&mut self) {
        for slot in std::mem::take(&mut self.deferred) {
            // Only a request that a failed step took its blocks from may lack some.
            self.is_short |= !self.schedule_chunk(slot);
        }
    }
}

impl Scheduler {
    /// How many rows each tenant has now; None if there is one tenant.
    pub(super) fn row_usage(&self, now: Nanos) -> Option<RowUsage> {
        if self.queue.shares.num_tenants() < 2 {
            return None;
        }
        let mut num_used = vec![0; self.queue.shares.num_places()];
        for &slot in &self.running {
            let request = self.request(slot);
            // What this step has preempted is on the list still.
            num_used[request.tenant as usize] += usize::from(request.is_running());
        }
        Some(RowUsage {
            num_used,
            num_tenants: self.queue.shares.expected(now).count(),
            num_rows: self.config.max_num_seqs,
        })
    }
}
