//! Reserved rows: some are kept for tenants that have less than their share, so that a tenant that sends little need not
//! wait until a row becomes free: of 32 rows one, and of 16 or more one at least.
//!
//! ```text
//! rows   a a a a a a a a a a a a a a a .     a waits, b was here 10 s ago: the row stays free
//!        a a a a a a a a a a a a a a a b     b arrives and is admitted to the next step
//!        a a a a a a . a a a a a . a a b     one of the rows that a leaves is a's again
//! ```
//!
//! A request that may not have a reserved row is passed by one that may, even if that one's tenant was served more: the
//! row is not for the first in any case. A preempted request is no exception: else a tenant beyond its share would take back
//! the row that it has yielded ([`super::yielding`]), and yield again to the next request.

use super::{fair_share::RowUsage, step::StepBuilder};
use crate::{config::Config, ids::Slot};

/// With fewer rows none is reserved.
const MIN_ROWS: usize = 16;

/// One of so many rows is reserved.
const ROWS_PER_RESERVED: usize = 32;

impl StepBuilder<'_> {
    /// The request that is admitted next: the head of the queue, or one that passes it; None if the rows that are free are
    /// reserved for others.
    pub(super) fn next_to_admit(&self, head: Slot) -> Option<Slot> {
        let waits = |&slot: &Slot| self.scheduler.request(slot).origin().is_some();
        let claimant = self.claim.claimant.filter(waits);
        let claimant = claimant.or_else(|| self.passes_preempted(head));
        if let Some(claimant) = claimant.or_else(|| self.passes_wide(head)) {
            return Some(claimant);
        }
        let Some(usage) = self.usage_that_reserves_rows(head) else {
            return Some(head);
        };
        let scheduler = &self.scheduler;
        let passes = |tenant| !usage.has_share(tenant);
        scheduler.slots.find(scheduler.queue.first_new(passes)?)
    }

    /// The rows by tenant, if the request has to leave those that are free to others: its tenant has its share of the rows,
    /// and another one has not. Rows of suspended requests count as free.
    fn usage_that_reserves_rows(&self, slot: Slot) -> Option<RowUsage> {
        let scheduler = &self.scheduler;
        let request = scheduler.request(slot);
        let num_rows = scheduler.config.max_num_seqs;
        let num_reserved = (num_rows / ROWS_PER_RESERVED).max(1);
        let can_reserve = reserves_rows(&scheduler.config);
        let num_free = scheduler.rows.num_free() + self.num_idle_rows;
        let num_left = num_free.checked_sub(request.num_rows());
        let is_left = num_left.is_some_and(|left| left >= num_reserved);
        if !can_reserve || is_left {
            return None;
        }
        let mut usage = RowUsage::of(scheduler, self.now)?;
        let idle = scheduler
            .running
            .iter()
            .map(|&slot| scheduler.request(slot));
        for request in idle.filter(|request| request.is_idle()) {
            usage.leave(request.tenant, request.num_rows());
        }
        let mut expected = scheduler.queue.shares.expected(self.now);
        let is_reserved =
            usage.has_share(request.tenant) && !expected.all(|other| usage.has_share(other));
        is_reserved.then_some(usage)
    }
}

/// Whether rows can be reserved at all.
pub(super) fn reserves_rows(config: &Config) -> bool {
    config.max_num_seqs >= MIN_ROWS && !config.policy.holds_rows()
}
