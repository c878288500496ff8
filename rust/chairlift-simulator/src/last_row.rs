//! Whether the last row is kept for tenants that have less than their share, told from outside.

use std::collections::BTreeSet;

use chairlift_core::{ABSENCE, policy::Policy, scheduler::ROWS_TO_SPARE};

use crate::{client::Client, world::World};

impl World {
    /// Whether a new request of this tenant, which takes so many rows, may not have the last free one.
    pub(crate) fn is_last_row_kept_from(&self, tenant: u8, num_wanted: usize) -> bool {
        let config = &self.scenario.config;
        let num_free = self.rows.iter().filter(|owner| owner.is_none()).count();
        let clients = self.running.iter().map(|&index| &self.clients[index]);
        let has_idle = clients.clone().any(Client::is_idle);
        if config.policy != Policy::Continuous
            || config.max_num_seqs < ROWS_TO_SPARE
            || num_free != num_wanted
            || has_idle
        {
            return false;
        }
        let live = self.live.iter().map(|&index| self.clients[index].tenant);
        let left = self.shares.left.iter();
        let lately = left.filter(|&(_, &time)| self.now.saturating_sub(time) < ABSENCE);
        let tenants: BTreeSet<_> = live.chain(lately.map(|(&tenant, _)| tenant)).collect();
        let has_share = |tenant: u8| {
            let num_rows = clients.clone().filter(|client| client.tenant == tenant);
            num_rows.count() * tenants.len() >= config.max_num_seqs
        };
        has_share(tenant) && tenants.iter().any(|&other| !has_share(other))
    }
}
