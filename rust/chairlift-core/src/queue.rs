//! The queue of waiting requests, in the order of admission: preempted ones, then those of the tenant that was served
//! least, and of one tenant the request that has to start first.
//!
//! A request has to start before its queue deadline, or within [`PATIENCE`] of its arrival. A level of priority is worth
//! [`PRIORITY_LEVEL`] of that: it stands where it would stand had it to start so much earlier. No request starves, since one
//! that arrives late enough is behind it; and nothing is sorted again as time passes, since all grow older at the same
//! pace.
//!
//! ```text
//! front | preempted, by rank | new: tenant of the lowest counter, by rank | next tenant, ...
//!
//! rank = when it has to start - priority * PRIORITY_LEVEL, ties in order of arrival
//! ```

mod deadlines;
mod shares;
mod wait_clock;

use std::{collections::BTreeSet, ops::Bound};

use self::shares::Shares;
pub(crate) use self::{
    deadlines::Deadlines,
    shares::{OUTPUT_COST, PROMPT_COST},
    wait_clock::{WaitClock, Waiter},
};
pub use self::{
    shares::ABSENCE,
    wait_clock::{WaitCause, WaitTimes},
};
use crate::ids::{Nanos, RequestId, Tenant};

/// Waiting that one level of priority stands for: 10 s.
pub const PRIORITY_LEVEL: Nanos = 10_000_000_000;

/// When a request has to start that names no earlier time, counted from its arrival: 30 s. It only orders.
pub const PATIENCE: Nanos = 30_000_000_000;

/// Where a request is in the order of its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey {
    rank: i128,
    request: RequestId,
}

impl QueueKey {
    /// The key of a request that has to start by then.
    pub(crate) fn new(
        arrival: Nanos,
        start_by: Option<Nanos>,
        priority: i32,
        request: RequestId,
    ) -> Self {
        let latest = i128::from(arrival) + i128::from(PATIENCE);
        let start_by = start_by.map_or(latest, |time| latest.min(time.into()));
        Self {
            rank: start_by - i128::from(priority) * i128::from(PRIORITY_LEVEL),
            request,
        }
    }

    pub(crate) fn request(&self) -> RequestId {
        self.request
    }
}

/// The requests that may be admitted: an operation takes time in the logarithm of their number, and in the number of
/// tenants with waiting requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    preempted: BTreeSet<QueueKey>,
    /// New requests of each tenant.
    new_by_tenant: Vec<BTreeSet<QueueKey>>,
    /// Tenants with new requests, in no order.
    waiting_tenants: Vec<Tenant>,
    num_new: usize,
    pub(crate) shares: Shares,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.preempted.len() + self.num_new
    }

    /// The preempted requests, in order.
    pub(crate) fn preempted(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.preempted.iter().map(QueueKey::request)
    }

    pub(crate) fn num_preempted(&self) -> usize {
        self.preempted.len()
    }

    /// Requests that never ran.
    pub(crate) fn num_new(&self) -> usize {
        self.num_new
    }

    /// Requests of a tenant that never ran.
    pub(crate) fn num_new_of(&self, tenant: Tenant) -> usize {
        self.new_by_tenant
            .get(tenant as usize)
            .map_or(0, BTreeSet::len)
    }

    /// The requests of a tenant that never ran, in order.
    pub(crate) fn new_of(&self, tenant: Tenant) -> impl Iterator<Item = RequestId> + '_ {
        let requests = self.new_by_tenant.get(tenant as usize);
        requests.into_iter().flatten().map(QueueKey::request)
    }

    pub(crate) fn front(&self) -> Option<RequestId> {
        let preempted = self.preempted.first();
        preempted
            .map(QueueKey::request)
            .or_else(|| self.first_new(|_| true))
    }

    /// The new request that is next if only these tenants may have one: of the tenant that was served least; of equals of
    /// the one whose first has to start first.
    pub(crate) fn first_new(&self, may_go: impl Fn(Tenant) -> bool) -> Option<RequestId> {
        self.first_of(self.first_tenant(may_go)?)
    }

    /// The new request that may pass those before it, if only these tenants may have one: none of its tenant was admitted
    /// since theirs began to wait. So while a tenant waits another passes it once.
    pub(crate) fn first_to_pass(&self, may_go: impl Fn(Tenant) -> bool) -> Option<RequestId> {
        let head = self.first_tenant(|_| true)?;
        let passes = |tenant| tenant != head && self.shares.may_pass(tenant, head);
        let tenant = self.first_tenant(|tenant| may_go(tenant) && passes(tenant))?;
        let waiting_tenants = self.waiting_tenants.iter().copied();
        let mut before = waiting_tenants.filter(|&other| self.turn(other) < self.turn(tenant));
        let passes = before.all(|other| self.shares.may_pass(tenant, other));
        self.first_of(tenant).filter(|_| passes)
    }

    /// The new request of a tenant that is next.
    pub(crate) fn first_of(&self, tenant: Tenant) -> Option<RequestId> {
        self.new_by_tenant
            .get(tenant as usize)?
            .first()
            .map(QueueKey::request)
    }

    fn first_tenant(&self, may_go: impl Fn(Tenant) -> bool) -> Option<Tenant> {
        let waiting_tenants = self.waiting_tenants.iter().copied();
        let waiting_tenants = waiting_tenants.filter(|&tenant| may_go(tenant));
        waiting_tenants.min_by_key(|&tenant| self.turn(tenant))
    }

    /// The lowest is next.
    fn turn(&self, tenant: Tenant) -> (u64, Option<&QueueKey>) {
        (self.shares.served(tenant), self.of_tenant(tenant).first())
    }

    fn of_tenant(&self, tenant: Tenant) -> &BTreeSet<QueueKey> {
        &self.new_by_tenant[tenant as usize]
    }

    /// A tenant is about to have one more new request.
    pub(crate) fn arrive(&mut self, tenant: Tenant) {
        if !self.waiting_tenants.contains(&tenant) {
            self.shares
                .lift(tenant, self.waiting_tenants.iter().copied());
        }
    }

    /// Lists a request, which never ran if it `is_new`.
    pub(crate) fn insert(&mut self, tenant: Tenant, is_new: bool, key: QueueKey) {
        if !is_new {
            assert!(
                self.preempted.insert(key),
                "invariant: {key:?} is listed once"
            );
            return;
        }
        if self.new_by_tenant.len() <= tenant as usize {
            self.new_by_tenant
                .resize_with(tenant as usize + 1, BTreeSet::new);
        }
        let requests = &mut self.new_by_tenant[tenant as usize];
        if requests.is_empty() {
            self.waiting_tenants.push(tenant);
        }
        assert!(requests.insert(key), "invariant: {key:?} is listed once");
        self.num_new += 1;
    }

    pub(crate) fn remove(&mut self, tenant: Tenant, is_new: bool, key: QueueKey) {
        if !is_new {
            assert!(self.preempted.remove(&key), "invariant: {key:?} is listed");
            return;
        }
        let requests = &mut self.new_by_tenant[tenant as usize];
        assert!(requests.remove(&key), "invariant: {key:?} is listed");
        if requests.is_empty() {
            self.waiting_tenants.retain(|&other| other != tenant);
        }
        self.num_new -= 1;
    }

    /// Requests before a new one of this key, which need not be listed: exact with one tenant, else as if the others
    /// took turns with it. Takes time in the number of requests behind it.
    pub(crate) fn num_before(&self, tenant: Tenant, key: QueueKey) -> usize {
        let num_before = self
            .new_by_tenant
            .get(tenant as usize)
            .map_or(0, |requests| {
                let behind = (Bound::Included(key), Bound::Unbounded);
                requests.len() - requests.range(behind).count()
            });
        self.num_before_in_turns(tenant, num_before)
    }

    /// Requests before a new one that has `num_before` of its tenant before it, as if the other tenants took turns with it.
    /// Takes time in the number of tenants that wait.
    pub(crate) fn num_before_in_turns(&self, tenant: Tenant, num_before: usize) -> usize {
        let others = self
            .waiting_tenants
            .iter()
            .filter(|&&other| other != tenant);
        let others = others.map(|&other| {
            let goes_first = self.shares.served(other) <= self.shares.served(tenant);
            self.of_tenant(other)
                .len()
                .min(num_before + usize::from(goes_first))
        });
        self.preempted.len() + num_before + others.sum::<usize>()
    }

    /// Preempted requests before this key.
    pub(crate) fn num_preempted_before(&self, key: QueueKey) -> usize {
        self.preempted.range(..key).count()
    }

    /// All requests that are listed, and whether as fresh.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (bool, QueueKey)> + '_ {
        let preempted = self.preempted.iter().map(|&key| (false, key));
        preempted.chain(self.new_by_tenant.iter().flatten().map(|&key| (true, key)))
    }

    /// The requests that never ran, those of a tenant in order.
    pub(crate) fn new_requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        let new_by_tenant = self
            .waiting_tenants
            .iter()
            .map(|&tenant| self.of_tenant(tenant));
        new_by_tenant.flatten().map(QueueKey::request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(arrival: Nanos, priority: i32, id: u64) -> QueueKey {
        QueueKey::new(arrival, None, priority, RequestId(id))
    }

    /// Takes all requests out from the front; each costs its tenant `cost`.
    fn drain(queue: &mut Queue, mut listed: Vec<(Tenant, bool, QueueKey)>, cost: u64) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(front) = queue.front() {
            let index = listed.iter().position(|(_, _, key)| key.request == front);
            let (tenant, is_new, key) = listed.swap_remove(index.expect("it is listed"));
            queue.remove(tenant, is_new, key);
            queue.shares.charge(tenant, cost);
            order.push(front.0);
        }
        assert!(listed.is_empty() && queue.len() == 0);
        order
    }

    fn order(keys: &[QueueKey]) -> Vec<u64> {
        let mut queue = Queue::default();
        let tenant = queue.shares.enter("");
        let listed: Vec<_> = keys.iter().map(|&key| (tenant, true, key)).collect();
        for &(tenant, is_new, key) in &listed {
            queue.insert(tenant, is_new, key);
        }
        drain(&mut queue, listed, 1)
    }

    #[test]
    fn a_level_is_worth_ten_seconds_of_waiting() {
        let old = key(0, 0, 1);
        let just_in_time = key(PRIORITY_LEVEL - 1, 1, 2);
        let too_late = key(PRIORITY_LEVEL, 1, 3);
        assert_eq!(order(&[old, just_in_time, too_late]), [2, 1, 3]);
    }

    #[test]
    fn of_equals_the_one_that_has_to_start_first_goes_first() {
        let patient = QueueKey::new(0, Some(PATIENCE * 9), 0, RequestId(1));
        let usual = key(1, 0, 2);
        let urgent = QueueKey::new(2, Some(PATIENCE / 2), 0, RequestId(3));
        assert_eq!(order(&[patient, usual, urgent]), [3, 1, 2]);
    }

    #[test]
    fn the_preempted_come_first_and_ties_keep_the_order_of_arrival() {
        let mut queue = Queue::default();
        let tenant = queue.shares.enter("");
        let listed = vec![
            (tenant, true, key(5, 0, 2)),
            (tenant, true, key(5, 0, 1)),
            (tenant, false, key(9, -10, 7)),
        ];
        for &(tenant, is_new, key) in &listed {
            queue.insert(tenant, is_new, key);
        }
        assert_eq!(drain(&mut queue, listed, 1), [7, 1, 2]);
    }

    #[test]
    fn extreme_values_do_not_wrap() {
        let last = key(Nanos::MAX, i32::MIN, 1);
        let first = key(0, i32::MAX, 2);
        assert_eq!(order(&[last, first]), [2, 1]);
    }

    #[test]
    fn a_flood_does_not_hold_up_another_tenant() {
        let mut queue = Queue::default();
        let [flood, quiet] = ["flood", "quiet"].map(|name| queue.shares.enter(name));
        let mut listed: Vec<_> = (0..9).map(|i| (flood, true, key(i, 0, i))).collect();
        listed.push((quiet, true, key(100, 0, 100)));
        listed.push((quiet, true, key(101, 0, 101)));
        for &(tenant, is_new, key) in &listed {
            queue.arrive(tenant);
            queue.insert(tenant, is_new, key);
        }
        assert_eq!(queue.num_before(quiet, key(200, 0, 200)), 5);
        assert_eq!(
            drain(&mut queue, listed, 7),
            [0, 100, 1, 101, 2, 3, 4, 5, 6, 7, 8]
        );
    }

    #[test]
    fn those_before_a_key_are_counted() {
        let mut queue = Queue::default();
        let tenant = queue.shares.enter("");
        (0..4).for_each(|i| queue.insert(tenant, true, key(i, 0, i)));
        assert_eq!(queue.num_before(tenant, key(9, 0, 9)), 4);
        assert_eq!(queue.num_before(tenant, key(9, 1, 9)), 0);
        queue.remove(tenant, true, key(1, 0, 1));
        assert_eq!(queue.num_before(tenant, key(2, 0, 2)), 1);
    }
}
