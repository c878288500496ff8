//! Whether rows are kept for tenants that have less than their share, and who passes, told from outside.

use chairlift_core::policy::Policy;

use crate::{client::Client, crowd::Crowd, world::World};

/// Of 32 rows one is kept, and of 16 or more one at least.
pub(crate) fn num_spare_rows(num_rows: usize) -> usize {
    if num_rows < 16 {
        0
    } else {
        1.max(num_rows / 32)
    }
}

impl World {
    /// The rows by tenant, if a new request may not have those that are free.
    pub(crate) fn crowd_that_keeps_rows_from(&self, index: usize) -> Option<Crowd> {
        let config = &self.scenario.config;
        let num_free = self.rows.iter().filter(|owner| owner.is_none()).count();
        let num_wanted = 1 + self.following(index).len();
        let num_spare = num_spare_rows(config.max_num_seqs);
        let mut clients = self.running.iter().map(|&index| &self.clients[index]);
        let has_idle = clients.any(Client::is_idle);
        if config.policy != Policy::Continuous
            || num_spare == 0
            || num_free >= num_wanted + num_spare
            || has_idle
        {
            return None;
        }
        let crowd = self.crowd();
        let tenant = self.clients[index].tenant;
        (crowd.has_share(tenant) && !crowd.have_all_their_share()).then_some(crowd)
    }

    /// The new request that joins next: the first, or whoever passes it.
    pub(crate) fn next_fresh(&self) -> Option<usize> {
        let first = self.first_fresh(|_| true)?;
        let Some(crowd) = self.crowd_that_keeps_rows_from(first) else {
            return Some(first);
        };
        let passes = self.first_fresh(|tenant| !crowd.has_share(tenant));
        passes.or(Some(first))
    }
}
