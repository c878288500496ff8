//! What each tenant was served, as it came out, and how far tenants may be apart.
//!
//! The bound is that of virtual token counters (VTC; Sheng et al., OSDI '24, theorems 4.3 and 4.4): while a tenant waits, no
//! other is served more than it by more than a constant, whatever both have sent and were served before.
//!
//! ```text
//!   f waits       |------------------------------------------------|
//!   g is served   | old requests | turn | turn |    ...     | turn |
//!                  <= one turn     each only while f was served     <= one turn
//!                                  no less, but for one turn
//! ```
//!
//! A turn is what a tenant gets from the admission of one new request to that of its next; the constant comes from the
//! largest turn that there was, and knows neither counters nor how they are lifted.

use std::collections::{BTreeMap, BTreeSet};

/// The counters of the paper, for the one rule that no bound tells: whose new requests go before prompts that others have
/// begun. A turn more or less is all that this rule is about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    counts: BTreeMap<u8, u64>,
    max_served: u64,
    /// When each began to wait, and when its last new request was admitted, in turns of all.
    waits_since: BTreeMap<u8, u64>,
    admitted_at: BTreeMap<u8, u64>,
    num_turns: u64,
}

impl Counters {
    fn raise(&mut self, tenant: u8, raised: impl FnOnce(u64) -> u64) {
        let count = self.counts.entry(tenant).or_default();
        *count = raised(*count);
        self.max_served = self.max_served.max(*count);
    }

    pub(crate) fn count(&self, tenant: u8) -> u64 {
        self.counts.get(&tenant).copied().unwrap_or(0)
    }

    /// A tenant begins to wait beside these, and has no claim from the time before.
    pub(crate) fn begin_to_wait(&mut self, tenant: u8, others: impl Iterator<Item = u8>) {
        let lowest = others.map(|other| self.count(other)).min();
        let floor = lowest.map_or(self.max_served, |lowest| lowest.saturating_sub(1));
        self.raise(tenant, |count| count.max(floor));
        self.num_turns += 1;
        self.waits_since.insert(tenant, self.num_turns);
    }

    fn admit(&mut self, tenant: u8) {
        self.num_turns += 1;
        self.admitted_at.insert(tenant, self.num_turns);
    }

    /// No new request of the tenant was admitted since the other began to wait.
    pub(crate) fn may_pass(&self, tenant: u8, other: u8) -> bool {
        let turn = |turns: &BTreeMap<u8, u64>, tenant: u8| turns.get(&tenant).copied().unwrap_or(0);
        turn(&self.admitted_at, tenant) < turn(&self.waits_since, other)
    }

    /// A tenant was served no more than any of these.
    fn goes_before(&self, tenant: u8, others: &BTreeSet<u8>) -> bool {
        let mut others = others.iter();
        others.all(|&other| self.count(tenant) <= self.count(other))
    }
}

/// A request that is admitted, as it was before.
#[derive(Clone, Debug)]
pub(crate) struct Newcomer {
    pub(crate) tenant: u8,
    /// It never ran, and its tenant is below its share.
    pub(crate) is_below_share: bool,
    pub(crate) counters: Counters,
}

impl Newcomer {
    /// Whether it may be admitted before begun prompts of these tenants.
    pub(crate) fn may_pass(&self, tenants: &BTreeSet<u8>) -> bool {
        self.is_below_share && self.counters.goes_before(self.tenant, tenants)
    }
}

/// A token of a prompt that is computed costs 1, a token of output 2.
const OUTPUT_COST: u64 = 2;

/// What all tenants were served.
#[derive(Clone, Debug, Default)]
pub(crate) struct Service {
    served: BTreeMap<u8, u64>,
    /// Since its last new request was admitted.
    turns: BTreeMap<u8, u64>,
    longest_turn: u64,
    /// What all were served before a tenant began to wait, for those that wait.
    before: BTreeMap<u8, BTreeMap<u8, u64>>,
    pub(crate) counters: Counters,
}

impl Service {
    /// A new request of a tenant is admitted: so many tokens of its prompt are to be computed.
    pub(crate) fn admit(&mut self, tenant: u8, num_tokens: usize) {
        self.turns.insert(tenant, 0);
        self.counters.admit(tenant);
        self.serve(tenant, num_tokens as u64);
    }

    /// A tenant gets tokens of output.
    pub(crate) fn output(&mut self, tenant: u8, num_tokens: usize) {
        self.serve(tenant, OUTPUT_COST * num_tokens as u64);
    }

    fn serve(&mut self, tenant: u8, cost: u64) {
        *self.served.entry(tenant).or_default() += cost;
        let turn = self.turns.entry(tenant).or_default();
        *turn += cost;
        self.longest_turn = self.longest_turn.max(*turn);
        self.counters.raise(tenant, |count| count + cost);
    }

    /// These tenants wait, and no others. Returns one of them, a tenant that was served too much more meanwhile, and by how
    /// much.
    pub(crate) fn overtaken(&mut self, waiting: &BTreeSet<u8>) -> Option<(u8, u8, u64)> {
        self.before.retain(|tenant, _| waiting.contains(tenant));
        for &tenant in waiting {
            let served = &self.served;
            self.before.entry(tenant).or_insert_with(|| served.clone());
        }
        // One that begins to wait is placed just before those that wait.
        let max_lead = 3 * (self.longest_turn + self.served.len() as u64);
        self.before.iter().find_map(|(&tenant, before)| {
            let gained = |of: u8| {
                let count = |counts: &BTreeMap<u8, u64>| counts.get(&of).copied().unwrap_or(0);
                count(&self.served) - count(before)
            };
            let tenant_gain = gained(tenant);
            let mut others = self.served.keys().map(|&other| (other, gained(other)));
            let other = others.find(|&(_, gained)| gained > tenant_gain + max_lead);
            other.map(|(other, gained)| (tenant, other, gained - tenant_gain))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_waits_is_overtaken_by_three_turns_and_no_more() {
        let mut service = Service::default();
        let waiting = BTreeSet::from([1]);
        service.admit(1, 10);
        assert_eq!(service.overtaken(&waiting), None);
        (0..3).for_each(|_| service.admit(2, 12));
        assert_eq!(service.overtaken(&waiting), None);
        service.admit(2, 7);
        assert_eq!(service.overtaken(&waiting), Some((1, 2, 43)));
        service.output(1, 1);
        assert_eq!(service.overtaken(&waiting), None);
    }

    #[test]
    fn what_was_served_before_a_tenant_waits_does_not_count() {
        let mut service = Service::default();
        (0..9).for_each(|_| service.admit(2, 5));
        assert_eq!(service.overtaken(&BTreeSet::from([1, 2])), None);
        (0..9).for_each(|_| service.admit(1, 5));
        assert_eq!(service.overtaken(&BTreeSet::from([1])), None);
    }
}
