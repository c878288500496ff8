//! Fair shares between tenants: virtual token counters (VTC; Sheng et al., OSDI '24).
//!
//! Each tenant has a counter of the tokens that it was served, and of the tenants with waiting requests the one with the
//! lowest counter is next. A tenant does not save up while it sends nothing: when it waits again, its counter is lifted to
//! the lowest of the tenants that wait already.
//!
//! ```text
//!   served  a |##########|            a waits       next: c, then a (1 ahead of b), then b
//!           b |###########|           b waits
//!           c |####......|            c comes: lifted to a
//! ```
//!
//! Tenants that always wait differ by at most what one of their batches costs (theorem 4.3 there).

use std::collections::HashMap;

use crate::ids::{Nanos, Tenant};

/// What a token costs: a token of output reads all that the row has in its cache, and is computed alone.
pub(crate) const PROMPT_COST: u64 = 1;
pub(crate) const OUTPUT_COST: u64 = 2;

/// Idle tenants whose debts are remembered.
const MAX_IDLE_TENANTS: usize = 1024;

/// How long a tenant without requests is expected back: 30 s.
pub const ABSENCE: Nanos = 30_000_000_000;

#[derive(Clone, Debug, Default)]
struct Entry {
    name: String,
    served: u64,
    /// Requests that have not ended.
    num_live: usize,
    /// The turn when it began to wait, and that when its last new request was admitted.
    waits_since: u64,
    admitted_at: u64,
    /// When the last of them ended.
    left: Option<Nanos>,
}

/// What each tenant was served.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    entries: Vec<Entry>,
    free: Vec<Tenant>,
    /// Clients may choose the names: by a hash without a secret seed they could make them collide.
    by_name: HashMap<String, Tenant>,
    num_idle: usize,
    /// Turns so far: a tenant began to wait, or a new request was admitted.
    num_turns: u64,
    /// The highest that any counter ever was.
    max_served: u64,
}

impl Shares {
    /// A request of this tenant begins to live.
    pub(crate) fn enter(&mut self, name: &str) -> Tenant {
        if let Some(&tenant) = self.by_name.get(name) {
            let entry = &mut self.entries[tenant as usize];
            self.num_idle -= usize::from(entry.num_live == 0);
            entry.num_live += 1;
            return tenant;
        }
        let tenant = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            (self.entries.len() - 1) as Tenant
        });
        self.entries[tenant as usize] = Entry {
            name: name.to_owned(),
            num_live: 1,
            ..Entry::default()
        };
        self.by_name.insert(name.to_owned(), tenant);
        tenant
    }

    /// The tenant of this name; None if it has no requests and no debt is remembered.
    pub(crate) fn find(&self, name: &str) -> Option<Tenant> {
        self.by_name.get(name).copied()
    }

    /// One more request of a tenant that has some.
    pub(crate) fn enter_again(&mut self, tenant: Tenant) {
        self.entries[tenant as usize].num_live += 1;
    }

    /// A request of this tenant has ended.
    pub(crate) fn leave(&mut self, now: Nanos, tenant: Tenant) {
        let entry = &mut self.entries[tenant as usize];
        entry.num_live -= 1;
        entry.left = Some(now);
        if entry.num_live == 0 {
            self.num_idle += 1;
            if self.num_idle > MAX_IDLE_TENANTS {
                self.forget_idle();
            }
        }
    }

    /// A tenant without waiting requests gets its first, beside the tenants `others`.
    pub(crate) fn lift(&mut self, tenant: Tenant, others: impl Iterator<Item = Tenant>) {
        let lowest = others.map(|other| self.served(other)).min();
        // Where no tenant waits, none has a claim: all begin from the highest. Just below the lowest, it need not let an older
        // request go first.
        let floor = lowest.map_or(self.max_served, |lowest| lowest.saturating_sub(1));
        let entry = &mut self.entries[tenant as usize];
        entry.served = entry.served.max(floor);
        self.num_turns += 1;
        entry.waits_since = self.num_turns;
        self.max_served = self.max_served.max(entry.served);
    }

    /// A new request of a tenant is admitted, which costs so much.
    pub(crate) fn admit(&mut self, tenant: Tenant, cost: u64) {
        self.num_turns += 1;
        self.entries[tenant as usize].admitted_at = self.num_turns;
        self.charge(tenant, cost);
    }

    /// No new request of the tenant was admitted since another, which waits, began to wait.
    pub(crate) fn may_pass(&self, tenant: Tenant, other: Tenant) -> bool {
        let entry = |tenant: Tenant| &self.entries[tenant as usize];
        entry(tenant).admitted_at < entry(other).waits_since
    }

    /// A tenant gets what costs so much.
    pub(crate) fn charge(&mut self, tenant: Tenant, cost: u64) {
        let served = &mut self.entries[tenant as usize].served;
        *served = served.saturating_add(cost);
        self.max_served = self.max_served.max(*served);
    }

    pub(crate) fn served(&self, tenant: Tenant) -> u64 {
        self.entries[tenant as usize].served
    }

    /// Tenants with live requests, and those that had some lately.
    pub(crate) fn expected(&self, now: Nanos) -> impl Iterator<Item = Tenant> + '_ {
        let was_lately = move |left: Nanos| now.saturating_sub(left) < ABSENCE;
        let is_expected =
            move |entry: &Entry| entry.num_live > 0 || entry.left.is_some_and(was_lately);
        let tenants = self.entries.iter().enumerate();
        let tenants = tenants.filter(move |(_, entry)| is_expected(entry));
        tenants.map(|(tenant, _)| tenant as Tenant)
    }

    /// All tenants are below.
    pub(crate) fn num_places(&self) -> usize {
        self.entries.len()
    }

    /// Tenants with live requests, and those whose counters are remembered.
    pub(crate) fn num_tenants(&self) -> usize {
        self.by_name.len()
    }

    pub(crate) fn num_live(&self) -> usize {
        self.entries.iter().map(|entry| entry.num_live).sum()
    }

    /// Debts are forgiven before they take memory without bound.
    fn forget_idle(&mut self) {
        for (tenant, entry) in self.entries.iter_mut().enumerate() {
            if entry.num_live == 0 && self.by_name.remove(&entry.name).is_some() {
                *entry = Entry::default();
                self.free.push(tenant as Tenant);
            }
        }
        self.num_idle = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_that_waits_again_is_lifted_to_just_below_the_lowest_that_waits() {
        let mut shares = Shares::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| shares.enter(name));
        shares.charge(a, 100);
        shares.charge(b, 70);
        shares.lift(c, [a, b].into_iter());
        assert_eq!(shares.served(c), 69);
        shares.lift(a, [b, c].into_iter());
        assert_eq!(shares.served(a), 100, "a debt stays");
    }

    #[test]
    fn where_no_tenant_waits_all_begin_alike() {
        let mut shares = Shares::default();
        let [a, b] = ["a", "b"].map(|name| shares.enter(name));
        shares.charge(a, 100);
        shares.lift(b, [].into_iter());
        assert_eq!(shares.served(b), 100);
    }

    #[test]
    fn a_debt_outlives_the_requests_of_its_tenant() {
        let mut shares = Shares::default();
        let a = shares.enter("a");
        shares.charge(a, 100);
        shares.leave(0, a);
        assert_eq!(shares.enter("a"), a);
        assert_eq!(shares.served(a), 100);
    }

    #[test]
    fn idle_tenants_take_no_memory_without_bound() {
        let mut shares = Shares::default();
        let stays = shares.enter("stays");
        for i in 0..100_000 {
            let tenant = shares.enter(&format!("{i}"));
            shares.leave(0, tenant);
        }
        assert!(shares.entries.len() <= MAX_IDLE_TENANTS + 3);
        assert_eq!(shares.enter("stays"), stays);
        assert_eq!(shares.num_live(), 2);
    }

    #[test]
    fn a_tenant_that_left_lately_is_expected() {
        let mut shares = Shares::default();
        let [a, b] = ["a", "b"].map(|name| shares.enter(name));
        shares.leave(7, b);
        let expected = |now| shares.expected(now).collect::<Vec<_>>();
        assert_eq!(expected(7 + ABSENCE - 1), [a, b]);
        assert_eq!(expected(7 + ABSENCE), [a]);
    }
}
