//! The rows of each tenant, its fair share of them, and rows that are reserved for tenants with less.

use std::collections::BTreeMap;

use chairlift_core::{ABSENCE, policy::Policy};

use crate::world::World;

/// The rows of each tenant that has live requests or had some lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowUsage {
    num_used: BTreeMap<u8, usize>,
    num_rows: usize,
}

impl RowUsage {
    pub(crate) fn num_used(&self, tenant: u8) -> usize {
        self.num_used.get(&tenant).copied().unwrap_or(0)
    }

    pub(crate) fn has_share(&self, tenant: u8) -> bool {
        self.has_share_beside(tenant, 0)
    }

    /// The tenant has its share with so many rows more.
    pub(crate) fn has_share_beside(&self, tenant: u8, more: usize) -> bool {
        (self.num_used(tenant) + more) * self.num_used.len() >= self.num_rows
    }

    pub(crate) fn has_row(&self, tenant: u8) -> bool {
        self.num_used.get(&tenant).is_some_and(|&num| num > 0)
    }

    /// The tenant stays below its share until the last of so many rows more.
    pub(crate) fn stays_within(&self, tenant: u8, num_rows: usize) -> bool {
        let num_used = self.num_used(tenant);
        (num_used + num_rows - 1) * self.num_used.len() < self.num_rows
    }

    /// How many of so many rows the tenant has beyond its share.
    pub(crate) fn num_spare(&self, tenant: u8, num_left: usize) -> usize {
        let share = self.num_rows.div_ceil(self.num_used.len().max(1)).max(1);
        let num_used = self.num_used(tenant);
        num_used.saturating_sub(num_left).saturating_sub(share)
    }

    /// The tenant has more than its share of so many rows.
    pub(crate) fn is_beyond(&self, tenant: u8, num_rows: usize) -> bool {
        let num_used = self.num_used(tenant);
        num_used > 1 && (num_used - 1) * self.num_used.len() >= num_rows
    }

    pub(crate) fn num_in_use(&self) -> usize {
        self.num_used.values().sum()
    }

    fn leave(&mut self, tenant: u8, num_rows: usize) {
        let num_used = self.num_used.entry(tenant).or_default();
        *num_used = num_used.saturating_sub(num_rows);
    }

    fn have_all_their_share(&self) -> bool {
        self.num_used.keys().all(|&tenant| self.has_share(tenant))
    }
}

/// One of 32 rows is reserved, and one at least of 16 or more.
pub(crate) fn num_reserved_rows(num_rows: usize) -> usize {
    if num_rows < 16 {
        0
    } else {
        1.max(num_rows / 32)
    }
}

impl World {
    pub(crate) fn row_usage(&self) -> RowUsage {
        let live = self.live.iter().map(|&index| self.clients[index].tenant);
        let left = self.tenants_left.iter();
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

    /// Whether rows can be reserved here at all.
    pub(crate) fn reserves_rows(&self) -> bool {
        let config = &self.scenario.config;
        config.policy == Policy::Continuous && num_reserved_rows(config.max_num_seqs) > 0
    }

    /// Whether a waiting request would take a row that is reserved for others: its tenant has its share, another has not.
    pub(crate) fn takes_reserved_row(&self, index: usize) -> bool {
        let client = &self.clients[index];
        if !self.reserves_rows() || !(client.is_fresh() || client.is_preempted()) {
            return false;
        }
        let num_free = self.rows.iter().filter(|owner| owner.is_none()).count();
        let num_wanted = 1 + self.waiting_siblings(index).len();
        let num_reserved = num_reserved_rows(self.scenario.config.max_num_seqs);
        let (mut usage, mut num_idle) = (self.row_usage(), 0);
        // Rows of suspended requests can be had.
        let running = self.running.iter().copied();
        for index in running.filter(|&index| self.clients[index].is_idle()) {
            let num_rows = 1 + self.waiting_siblings(index).len();
            num_idle += num_rows;
            usage.leave(self.clients[index].tenant, num_rows);
        }
        if num_free + num_idle >= num_wanted + num_reserved {
            return false;
        }
        usage.has_share(self.clients[index].tenant) && !usage.have_all_their_share()
    }
}
