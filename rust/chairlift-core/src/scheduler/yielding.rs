//! Yielding: where one tenant has more rows than its fair share, and a request of another would stay within its own and finds
//! no row or no block, sequences of the first lose theirs.
//!
//! ```text
//! rows   a a a a a a a a     one request of a with eight sequences, or eight requests
//!        a a a a a a a b     b arrives: one sequence of a is preempted, before the step
//!        a a a a b b b b     b sends more: both have their share, and no row changes hands
//!        a a a a b b b b     what a lost waits behind what b sends, until b has its share
//! ```
//!
//! - A tenant keeps its share, so that what it yields is never claimed back: rows move one way until all have their share.
//! - The tenant with the most rows yields. Of its sequences those that wait for their parent to compute the prompt go first:
//!   they lose nothing. Then those that lose least ([`super::preempt`]), but never the oldest running request.
//! - A sequence that was preempted yields again only after [`LEAST_PROGRESS`] more tokens.
//! - What a step in flight names is left out of the next step, and preempted before the one after.

use std::cmp::Reverse;

use super::{Scheduler, fair_share::RowUsage};
use crate::ids::{Nanos, Slot, Tenant};

/// Tokens between two preemptions of a sequence by which it yields: each is paid for by progress.
pub(crate) const LEAST_PROGRESS: usize = 16;

/// Sequences that yield their blocks to one request in one step, where it lacks no row.
const MOST_FOR_BLOCKS: usize = 16;

/// What a step does for a request of a tenant below its share.
#[derive(Debug, Default)]
pub(super) struct Claim {
    /// The request, if others yield for it: it is admitted before all.
    pub(super) claimant: Option<Slot>,
    /// Sequences that yield their rows before the next step.
    pub(super) left_out: Vec<Slot>,
}

impl Scheduler {
    /// The request that may claim what tenants have beyond their share: of tenants below it the first that was preempted, or
    /// else the new one that is next, or else one of a tenant without any row that may pass it; if all of its sequences stay
    /// within the share.
    ///
    /// Where rows are reserved, the new one that is next passes others anyway; elsewhere it has to be the first of all.
    pub(super) fn claimant(&self, usage: &RowUsage) -> Option<Slot> {
        let stays_within = |&slot: &Slot| {
            let request = self.request(slot);
            !usage.has_share_beside(request.tenant, request.num_rows() - 1)
        };
        let slot = |id| self.slots.find(id);
        let preempted = || self.queue.preempted().filter_map(slot);
        if let Some(slot) = preempted().find(stays_within) {
            return Some(slot);
        }
        if !preempted().all(|slot| usage.has_share(self.request(slot).tenant)) {
            // A new request passes only what waits beyond its tenant's share.
            return None;
        }
        let passes = self.reserves_rows();
        let may_go = |tenant| !passes || !usage.has_share(tenant);
        let first = self.queue.first_new(may_go).and_then(slot);
        let is_next = |tenant| {
            let request = || self.queue.first_of(tenant).and_then(slot);
            usage.num_used(tenant) == 0 && request().is_some_and(|slot| stays_within(&slot))
        };
        first
            .filter(stays_within)
            .or_else(|| self.queue.first_to_pass(is_next).and_then(slot))
    }

    /// Takes from tenants beyond their share what a request below its share lacks. The step leaves out what a step in flight
    /// names.
    pub(super) fn yield_rows(&mut self, now: Nanos) -> Claim {
        let mut claim = Claim::default();
        if self.queue.len() == 0 || self.config.policy.holds_rows() {
            return claim;
        }
        let Some(usage) = self.row_usage(now) else {
            return claim;
        };
        let Some(claimant) = self.claimant(&usage) else {
            return claim;
        };
        for slot in self.yielded_to(claimant, usage) {
            claim.claimant = Some(claimant);
            let request = self.request(slot);
            if request.in_flight > 0 {
                claim.left_out.push(slot);
            } else if request.parent.is_some() {
                self.part_from_parent(slot);
            } else {
                self.preempt(slot);
            }
        }
        self.sweep();
        claim
    }

    /// The sequences that yield so that a waiting request can be admitted; none if that is not enough.
    fn yielded_to(&mut self, claimant: Slot, mut usage: RowUsage) -> Vec<Slot> {
        let num_hits = self.num_hits(claimant);
        let running = self.running.iter().rev().copied();
        let idle: Vec<_> = running
            .filter(|&slot| self.request(slot).is_idle())
            .collect();
        let mut num_missing = self.missing_rows(claimant);
        // Rows of ended requests that a step in flight names come back by themselves.
        num_missing = num_missing.saturating_sub(self.rows.num_used() - self.running.len());
        for &slot in &idle {
            let request = self.request(slot);
            num_missing = num_missing.saturating_sub(request.num_rows());
            usage.leave(request.tenant, request.num_rows());
        }
        let most = num_missing.max(MOST_FOR_BLOCKS);
        let order = self.in_order_of_yielding(usage, most);
        let headroom = self.headroom(claimant, self.running.len() - idle.len());
        let request = self.request(claimant);
        let tables = idle.iter().chain(&order);
        let tables = tables.map(|&slot| &self.request(slot).table);
        let (table, tokens) = (&request.table, &request.tokens);
        let for_blocks = self
            .kv
            .num_releases(table, tokens, num_hits, headroom, tables);
        let num_yielded = for_blocks.map(|num| num_missing.max(num.saturating_sub(idle.len())));
        match num_yielded {
            Some(num) if num <= order.len() => order[..num].to_vec(),
            _ => Vec::new(),
        }
    }

    /// Up to `most` running sequences of tenants that keep their share without them.
    fn in_order_of_yielding(&self, mut usage: RowUsage, most: usize) -> Vec<Slot> {
        let running = || self.running.iter().copied();
        let oldest = running().find(|&slot| !self.request(slot).is_suspended());
        let may_yield = |&slot: &Slot| {
            let request = self.request(slot);
            Some(slot) != oldest
                && !request.is_suspended()
                && request.has_started
                && request.num_siblings == 0
                && request.has_progress()
        };
        let mut candidates: Vec<_> = running().rev().filter(may_yield).collect();
        candidates.sort_by_key(|&slot| {
            let request = self.request(slot);
            let waits = request.parent.is_some();
            (request.in_flight > 0, !waits, self.loss(slot))
        });
        let mut order = Vec::new();
        while order.len() < most {
            let tenant = |&place: &usize| self.request(candidates[place]).tenant;
            let places = (0..candidates.len()).filter(|place| usage.can_spare(tenant(place)));
            let Some(place) =
                places.max_by_key(|place| (usage.num_used(tenant(place)), Reverse(*place)))
            else {
                break;
            };
            usage.leave(tenant(&place), 1);
            order.push(candidates.remove(place));
        }
        order
    }

    /// A sibling that waits for its parent loses its row alone: it computes the prompt itself when it gets another, or finds
    /// it in the prefix cache.
    fn part_from_parent(&mut self, slot: Slot) {
        if let Some(parent) = self.slots.live(slot).parent.take() {
            self.slots.live(parent).num_siblings -= 1;
        }
        self.lose_row(slot);
    }

    /// The request that passes a preempted one whose tenant has its share.
    pub(super) fn passes_preempted(&self, now: Nanos, head: Slot) -> Option<Slot> {
        let request = self.request(head);
        if !request.is_preempted() || self.config.policy.holds_rows() {
            return None;
        }
        let usage = self.row_usage(now)?;
        usage
            .has_share(request.tenant)
            .then(|| self.claimant(&usage))?
    }

    /// The request of a tenant without any row that passes a new one which lacks rows, where it lacks none itself.
    pub(super) fn passes_wide(&self, now: Nanos, head: Slot, num_idle_rows: usize) -> Option<Slot> {
        let lacks_rows = |slot: Slot| self.missing_rows(slot) > num_idle_rows;
        let is_preempted = self.request(head).is_preempted();
        if is_preempted || self.config.policy.holds_rows() || !lacks_rows(head) {
            return None;
        }
        let claimant = self.claimant(&self.row_usage(now)?);
        claimant.filter(|&slot| !lacks_rows(slot))
    }
}

impl RowUsage {
    fn num_used(&self, tenant: Tenant) -> usize {
        self.num_used[tenant as usize]
    }

    /// The tenant has its fair share with so many rows more.
    fn has_share_beside(&self, tenant: Tenant, more: usize) -> bool {
        (self.num_used(tenant) + more) * self.num_tenants >= self.num_rows
    }

    /// The tenant has its fair share without one of its rows.
    pub(super) fn can_spare(&self, tenant: Tenant) -> bool {
        self.num_used(tenant) > 1 && (self.num_used(tenant) - 1) * self.num_tenants >= self.num_rows
    }

    pub(super) fn leave(&mut self, tenant: Tenant, num: usize) {
        self.num_used[tenant as usize] -= num;
    }
}
