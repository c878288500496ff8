//! The order of admission, told in pairs: which of two waiting requests may never be admitted before the other.
//!
//! A request is admitted when the policy's gate is open, behind preempted ones. Of two that wait in one line, the new ones
//! of a tenant or the preempted ones, the first is the one that has no lower priority and need not start later; or, whatever
//! the other needs, the one that has waited longer than [`PATIENCE`] and the levels of priority between them stand for: so
//! none starves. Between tenants `service` has the bound.

use std::ops::Range;

use chairlift_core::{PATIENCE, PRIORITY_LEVEL, policy::Policy};

use crate::{
    batch::Before,
    client::Client,
    tally::Sight,
    world::{Checked, World, ensure},
};

/// Whether one request has to be admitted before another of the same line.
fn goes_before(first: &Client, other: &Client) -> bool {
    let urgent = other.must_start() - first.must_start();
    let levels = i128::from(first.priority) - i128::from(other.priority);
    if urgent >= 0 && levels >= 0 {
        return urgent > 0 || levels > 0 || first.id < other.id;
    }
    let placed = |client: &Client| i128::from(client.arrival) + i128::from(client.turn_delay);
    let older = placed(other) - placed(first);
    let is_overdue = older + levels * i128::from(PRIORITY_LEVEL) > i128::from(PATIENCE);
    // A request may name a time that was over when it came.
    is_overdue && other.must_start() >= placed(other)
}

impl World {
    /// Fresh requests are admitted in order of priority and arrival, behind preempted ones, when the policy lets them.
    pub(crate) fn check_turn(
        &mut self,
        index: usize,
        before: &Before,
        num_joining: usize,
    ) -> Checked {
        let label = self.clients[index].label;
        let is_odd = self.scenario.config.steps_in_flight > 1;
        let usage = self.row_usage();
        let num_rows = 1 + self.waiting_siblings(index).len();
        let is_within = usage.stays_within(self.clients[index].tenant, num_rows)
            && self.scenario.config.policy == Policy::Continuous;
        let live = self.live.iter().map(|&other| &self.clients[other]);
        let mut preempted = live.filter(|other| other.is_preempted());
        ensure!(
            preempted
                .all(|other| is_odd || is_within && before.has_had_share(&usage, other.tenant)),
            "#{label} is admitted before a preempted request"
        );
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
        self.check_order(index, Client::is_fresh, before)?;
        let fresh = || {
            let live = self.live.iter().copied();
            live.filter(|&other| other != index && self.clients[other].is_fresh())
        };
        let client = &self.clients[index];
        let mut others = fresh().map(|other| &self.clients[other]);
        let is_earlier =
            |other: &Client| other.tenant != client.tenant && other.arrival < client.arrival;
        let has_passed = others.any(is_earlier);
        self.tally.add(Sight::Shares, u64::from(has_passed));
        if self.scenario.config.steps_in_flight > 1 || !before.suspended.is_empty() {
            // Which rows are free the world learns later.
            return Ok(());
        }
        ensure!(
            !self.takes_reserved_row(index),
            "#{label} takes a row that is reserved for tenants below their share"
        );
        let has_passed_head = has_passed && fresh().any(|other| self.takes_reserved_row(other));
        self.tally
            .add(Sight::PassedHead, u64::from(has_passed_head));
        Ok(())
    }

    /// A request is admitted: no other that waits in its line has to be before it.
    pub(crate) fn check_order(
        &self,
        index: usize,
        waits: fn(&Client) -> bool,
        before: &Before,
    ) -> Checked {
        let client = &self.clients[index];
        let usage = self.row_usage();
        let has_share = |client: &Client| {
            let had_share = before.has_had_share(&usage, client.tenant);
            (had_share, usage.has_share(client.tenant))
        };
        let line = self.live.iter().map(|&other| &self.clients[other]);
        // A preempted request of a tenant below its share passes those of others.
        let mut line = line.filter(|other| {
            waits(other) && client.shares_line(other) && has_share(client) == has_share(other)
        });
        let before = line.find(|other| goes_before(other, client));
        ensure!(
            before.is_none(),
            "#{} is admitted, and #{} has to be before it",
            client.label,
            before.map_or(0, |before| before.label)
        );
        Ok(())
    }

    /// A new request is told how many are before it, as it is told later.
    pub(crate) fn check_position(&self, index: usize, position: usize) -> Checked {
        let client = &self.clients[index];
        let later = self.scheduler.explain(client.id);
        let later = later.map_or(usize::MAX, |waiting| waiting.num_before);
        ensure!(
            position == later || !client.is_fresh(),
            "#{} is told that {position} are before it, and then {later}",
            client.label
        );
        Ok(())
    }

    /// Requests of a line are told how many are before them: each another of these numbers, in their order.
    pub(crate) fn check_places(
        &self,
        mut told: Vec<(usize, usize)>,
        mut places: Range<usize>,
    ) -> Checked {
        told.sort_unstable();
        let mut before: Option<&Client> = None;
        for (place, index) in told {
            let client = &self.clients[index];
            ensure!(
                places.contains(&place),
                "#{} is told that {place} are before it, expected one of {places:?}",
                client.label
            );
            places.start = place + 1;
            ensure!(
                before.is_none_or(|before| !goes_before(client, before)),
                "#{} is told that {place} are before it, and has to be before them",
                client.label
            );
            before = Some(client);
        }
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
