//! Rows that are reserved for tenants below their share, checked from outside.

use chairlift_core::policy::Policy;

use crate::{client::Client, fair_share::RowUsage, world::World};

/// Of 32 rows one is kept, and of 16 or more one at least.
pub(crate) fn num_reserved_rows(num_rows: usize) -> usize {
    if num_rows < 16 {
        0
    } else {
        1.max(num_rows / 32)
    }
}

impl World {
    /// The rows by tenant, if a fresh request may not have the free ones.
    pub(crate) fn usage_that_reserves_rows(&self, index: usize) -> Option<RowUsage> {
        let config = &self.scenario.config;
        let num_free = self.rows.iter().filter(|owner| owner.is_none()).count();
        let num_wanted = 1 + self.waiting_siblings(index).len();
        let num_reserved = num_reserved_rows(config.max_num_seqs);
        let mut clients = self.running.iter().map(|&index| &self.clients[index]);
        let has_idle = clients.any(Client::is_idle);
        if config.policy != Policy::Continuous
            || num_reserved == 0
            || num_free >= num_wanted + num_reserved
            || has_idle
        {
            return None;
        }
        let row_usage = self.row_usage();
        let tenant = self.clients[index].tenant;
        (row_usage.has_share(tenant) && !row_usage.have_all_their_share()).then_some(row_usage)
    }

    /// The fresh request that is admitted next: the first, or one that passes it.
    pub(crate) fn next_fresh(&self) -> Option<usize> {
        let first = self.first_fresh(|_| true)?;
        let Some(row_usage) = self.usage_that_reserves_rows(first) else {
            return Some(first);
        };
        let passes = self.first_fresh(|tenant| !row_usage.has_share(tenant));
        passes.or(Some(first))
    }
}
