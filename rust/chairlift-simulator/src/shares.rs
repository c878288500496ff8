//! What each tenant was served, by the rules of the paper (VTC; Sheng et al., OSDI '24), counted from outside.

use std::collections::BTreeMap;

use crate::{client::Client, world::World};

/// Counters of all tenants that ever sent a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    served: BTreeMap<u8, u64>,
    most: u64,
    /// When the last request of each tenant that has none any more ended.
    pub(crate) left: BTreeMap<u8, u64>,
}

impl Shares {
    pub(crate) fn served(&self, tenant: u8) -> u64 {
        self.served.get(&tenant).copied().unwrap_or(0)
    }

    /// A token of the prompt that is computed costs 1.
    pub(crate) fn admit(&mut self, client: &Client, start: usize) {
        self.raise(client.tenant, |served| {
            served + (client.answer.num_prompt - start) as u64
        });
    }

    /// A token of the answer costs 2.
    pub(crate) fn answer(&mut self, tenant: u8, num_tokens: usize) {
        self.raise(tenant, |served| served + 2 * num_tokens as u64);
    }

    fn raise(&mut self, tenant: u8, raised: impl FnOnce(u64) -> u64) {
        let served = self.served.entry(tenant).or_insert(0);
        *served = raised(*served);
        self.most = self.most.max(*served);
    }
}

impl World {
    /// A request begins to wait: if it is its tenant's only one, the tenant has no claim from the time before.
    pub(crate) fn lift(&mut self, index: usize) {
        let client = &self.clients[index];
        let waiting = self.live.iter().copied();
        let mut waiting = waiting.filter(|&other| other != index && self.clients[other].is_fresh());
        let tenant = client.tenant;
        let is_only = waiting
            .clone()
            .all(|other| self.clients[other].tenant != tenant);
        if client.is_fresh() && is_only {
            let lowest = waiting
                .by_ref()
                .map(|other| self.shares.served(self.clients[other].tenant))
                .min();
            let below = |lowest: u64| lowest.saturating_sub(1);
            let floor = lowest.map_or(self.shares.most, below);
            self.shares.raise(tenant, |served| served.max(floor));
        }
    }
}
