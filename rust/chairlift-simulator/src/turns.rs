//! The order of admission: when the policy's gate is open, of the tenant that was served least the request that has to
//! start first.

use std::collections::BTreeMap;

use chairlift_core::policy::Policy;

use crate::{
    batch::Before,
    client::Client,
    reserved_rows::num_reserved_rows,
    tally::Sight,
    world::{Checked, World, ensure},
};

impl World {
    /// Fresh requests are admitted in order of priority and arrival, behind preempted ones, when the policy lets them.
    pub(crate) fn check_turn(
        &mut self,
        index: usize,
        before: &Before,
        num_joining: usize,
    ) -> Checked {
        let label = self.clients[index].label;
        let waits = self
            .live
            .iter()
            .any(|&other| self.clients[other].is_preempted());
        ensure!(!waits, "#{label} is admitted before a preempted request");
        if num_joining == 0 {
            // A step in flight names rows that are not back, even if all their requests have ended.
            let gate =
                self.gate_opens(!before.running.is_empty() || !self.in_flight_steps.is_empty());
            ensure!(
                gate.is_some_and(|time| time <= self.now),
                "#{label} is admitted though the policy's gate is closed"
            );
        }
        if let Policy::Batched { size, .. } = self.scenario.config.policy {
            let num_rows = num_joining + 1 + self.waiting_siblings(index).len();
            ensure!(
                num_joining == 0 || num_rows <= size,
                "more than a batch is admitted"
            );
        }
        let tenant = self.clients[index].tenant;
        if self.scenario.config.steps_in_flight > 1 || !before.suspended.is_empty() {
            // Which rows are free the world learns later.
            let is_kept = num_reserved_rows(self.scenario.config.max_num_seqs) > 0;
            let first = self.first_fresh(|other| other == tenant || !is_kept);
            ensure!(first == Some(index), "#{label} is admitted out of turn");
            return Ok(());
        }
        ensure!(
            self.next_fresh() == Some(index),
            "#{label} is admitted out of turn"
        );
        ensure!(
            self.usage_that_reserves_rows(index).is_none(),
            "#{label} takes a row that is kept for tenants below their share"
        );
        let has_passed = self.first_fresh(|_| true) != Some(index);
        self.tally.add(Sight::PassedHead, u64::from(has_passed));
        Ok(())
    }

    /// The first in the queue of the requests that are so.
    pub(crate) fn first(&self, is_wanted: fn(&Client) -> bool) -> Option<usize> {
        let wanted = self.live.iter().copied();
        wanted
            .filter(|&index| is_wanted(&self.clients[index]))
            .min_by_key(|&index| self.clients[index].rank())
    }

    /// The new request that is next if only these tenants may have one: of the tenant that was served least.
    pub(crate) fn first_fresh(&self, may_go: impl Fn(u8) -> bool) -> Option<usize> {
        let fresh = self.live.iter().copied();
        let fresh = fresh.filter(|&index| {
            let client = &self.clients[index];
            client.is_fresh() && may_go(client.tenant)
        });
        let mut firsts = BTreeMap::new();
        for index in fresh {
            let client = &self.clients[index];
            let first = firsts.entry(client.tenant).or_insert(index);
            if client.rank() < self.clients[*first].rank() {
                *first = index;
            }
        }
        let served = |index: usize| self.shares.served(self.clients[index].tenant);
        let firsts = firsts.into_values();
        firsts.min_by_key(|&index| (served(index), self.clients[index].rank()))
    }

    /// A new request is told how many are before it.
    pub(crate) fn check_position(
        &self,
        index: usize,
        position: usize,
        num_waiting: usize,
    ) -> Checked {
        let client = &self.clients[index];
        let is_before = |other: &Client| {
            other.is_preempted() || (other.is_fresh() && other.rank() < client.rank())
        };
        let live = || self.live.iter().map(|&index| &self.clients[index]);
        let is_alone = live().all(|other| !other.is_fresh() || other.tenant == client.tenant);
        let expected = live().filter(|other| is_before(other)).count();
        let is_known = is_alone && self.scenario.config.steps_in_flight == 1;
        ensure!(
            position == expected || (!is_known && position <= num_waiting),
            "#{} is told that {position} are before it, expected {expected}",
            client.label
        );
        Ok(())
    }

    /// When the policy admits a request that waits now, if nothing else happens.
    pub(crate) fn gate_opens(&self, batch_is_open: bool) -> Option<u64> {
        let fresh = self.live.iter().copied();
        let fresh: Vec<_> = fresh
            .filter(|&index| self.clients[index].is_fresh())
            .collect();
        let arrivals = fresh.iter().map(|&index| self.clients[index].arrival);
        let oldest = arrivals.min()?;
        let Policy::Batched { size, patience } = self.scenario.config.policy else {
            return Some(0);
        };
        let was_flushed = fresh.iter().any(|&index| index < self.flushed_before);
        let rows = fresh
            .iter()
            .map(|&index| 1 + self.waiting_siblings(index).len());
        let is_ready = rows.sum::<usize>() >= size || was_flushed;
        let due = oldest.saturating_add(patience);
        (!batch_is_open).then_some(if is_ready { 0 } else { due })
    }
}
