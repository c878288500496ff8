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
//! - A sequence that was preempted yields again only after [`super::preempt::MIN_PROGRESS`] more tokens.
//! - What a step in flight names is left out of the next step, and preempted before the one after.

use std::cmp::Reverse;

use super::{
    Scheduler, fair_share::RowUsage, preempt::Cost, reserved_rows::reserves_rows, step::StepBuilder,
};
use crate::ids::{Nanos, Slot};

/// Sequences that yield their blocks to one request in one step, where it lacks no row.
const MAX_FOR_BLOCKS: usize = 16;

/// What a step does for a request of a tenant below its share.
#[derive(Debug, Default)]
pub(super) struct Claim {
    /// The request, if others yield for it: it is admitted before all.
    pub(super) claimant: Option<Slot>,
    /// Sequences that yield their rows before the next step.
    pub(super) left_out: Vec<Slot>,
    /// A waiting request, and its leading blocks that the prefix cache knows: true until the step takes a block.
    pub(super) looked_up: Option<(Slot, usize)>,
}

impl Claim {
    /// Takes from tenants beyond their share what a request below its share lacks, and lists what the step has to leave
    /// out since a step in flight names it.
    pub(super) fn enforce(scheduler: &mut Scheduler, now: Nanos) -> Self {
        let mut claim = Self::default();
        if scheduler.queue.len() == 0 || scheduler.config.policy.holds_rows() {
            return claim;
        }
        let Some(usage) = RowUsage::of(scheduler, now) else {
            return claim;
        };
        let Some(claimant) = usage.claimant(scheduler) else {
            return claim;
        };
        let request = scheduler.slots.live(claimant);
        let num_hits = request.num_hits(&scheduler.kv);
        claim.looked_up = Some((claimant, num_hits));
        let yielding = Yielding { scheduler, usage };
        for slot in yielding.sequences_for(claimant, num_hits) {
            claim.claimant = Some(claimant);
            let request = scheduler.request(slot);
            if request.in_flight > 0 {
                claim.left_out.push(slot);
            } else if request.parent.is_some() {
                scheduler.preempt_sibling(slot);
            } else {
                scheduler.preempt(slot);
            }
        }
        scheduler.sweep();
        claim
    }
}

/// Finds what yields; it reads the scheduler and changes nothing.
struct Yielding<'a> {
    scheduler: &'a Scheduler,
    /// The rows that each tenant would have left.
    usage: RowUsage,
}

impl Yielding<'_> {
    /// The sequences that yield so that a waiting request can be admitted; none if that is not enough.
    fn sequences_for(mut self, claimant: Slot, num_hits: usize) -> Vec<Slot> {
        let scheduler = self.scheduler;
        let request = |slot: Slot| scheduler.request(slot);
        let idle: Vec<_> = scheduler.idle().collect();
        let claimant = request(claimant);
        let mut num_missing = scheduler.rows.num_missing(claimant.num_rows());
        // Rows of ended requests that a step in flight names come back by themselves.
        let num_ended = scheduler.rows.num_used() - scheduler.running.len();
        num_missing = num_missing.saturating_sub(num_ended);
        for &slot in &idle {
            let num_rows = request(slot).num_rows();
            num_missing = num_missing.saturating_sub(num_rows);
            self.usage.leave(request(slot).tenant, num_rows);
        }
        let order = self.in_order(num_missing.max(MAX_FOR_BLOCKS));
        let kv = &scheduler.kv;
        let headroom = claimant.headroom(kv, scheduler.running.len() - idle.len());
        let tables = idle.iter().chain(&order);
        let tables = tables.map(|&slot| &request(slot).table);
        let (table, tokens) = (&claimant.table, &claimant.tokens);
        let for_blocks = kv.num_releases(table, tokens, num_hits, headroom, tables);
        let num_yielded = for_blocks.map(|num| num_missing.max(num.saturating_sub(idle.len())));
        match num_yielded {
            Some(num) if num <= order.len() => order[..num].to_vec(),
            _ => Vec::new(),
        }
    }

    /// Up to `max` running sequences of tenants that keep their share without them, in the order in which they yield.
    fn in_order(&mut self, max: usize) -> Vec<Slot> {
        let (scheduler, usage) = (self.scheduler, &mut self.usage);
        let running = || scheduler.running.iter().copied();
        let oldest = running().find(|&slot| !scheduler.request(slot).is_suspended());
        let may_yield = |&slot: &Slot| {
            let request = scheduler.request(slot);
            Some(slot) != oldest
                && !request.is_suspended()
                && request.has_started
                && request.num_siblings == 0
                && request.has_progress()
        };
        let mut candidates: Vec<_> = running().rev().filter(may_yield).collect();
        candidates.sort_by_key(|&slot| {
            let request = scheduler.request(slot);
            let waits = request.parent.is_some();
            (request.in_flight > 0, !waits, Cost::of(scheduler, slot))
        });
        let mut order = Vec::new();
        while order.len() < max {
            let tenant = |&place: &usize| scheduler.request(candidates[place]).tenant;
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
}

impl RowUsage {
    /// The request that may claim what tenants have beyond their share: of tenants below it the first that was preempted, or
    /// else the new one that is next, or else one of a tenant without any row that may pass it; if all of its sequences stay
    /// within the share.
    ///
    /// Where rows are reserved, the new one that is next passes others anyway; elsewhere it has to be the first of all.
    fn claimant(&self, scheduler: &Scheduler) -> Option<Slot> {
        let (queue, usage) = (&scheduler.queue, self);
        let stays_within = |&slot: &Slot| {
            let request = scheduler.request(slot);
            !usage.has_share_beside(request.tenant, request.num_rows() - 1)
        };
        let slot = |id| scheduler.slots.find(id);
        let preempted = || queue.preempted().filter_map(slot);
        if let Some(slot) = preempted().find(stays_within) {
            return Some(slot);
        }
        if !preempted().all(|slot| usage.has_share(scheduler.request(slot).tenant)) {
            // A new request passes only what waits beyond its tenant's share.
            return None;
        }
        let passes = reserves_rows(&scheduler.config);
        let may_go = |tenant| !passes || !usage.has_share(tenant);
        let first = queue.first_new(may_go).and_then(slot);
        let is_next = |tenant| {
            let request = || queue.first_of(tenant).and_then(slot);
            usage.num_used(tenant) == 0 && request().is_some_and(|slot| stays_within(&slot))
        };
        first
            .filter(stays_within)
            .or_else(|| queue.first_to_pass(is_next).and_then(slot))
    }
}

impl StepBuilder<'_> {
    /// The request that passes a preempted one whose tenant has its share.
    pub(super) fn passes_preempted(&self, head: Slot) -> Option<Slot> {
        let scheduler = &*self.scheduler;
        let request = scheduler.request(head);
        if !request.is_preempted() || scheduler.config.policy.holds_rows() {
            return None;
        }
        let usage = RowUsage::of(scheduler, self.now)?;
        usage
            .has_share(request.tenant)
            .then(|| usage.claimant(scheduler))?
    }

    /// The request of a tenant without any row that passes a new one which lacks rows, where it lacks none itself.
    pub(super) fn passes_wide(&self, head: Slot) -> Option<Slot> {
        let scheduler = &*self.scheduler;
        let lacks_rows = |slot: Slot| {
            let num_rows = scheduler.request(slot).num_rows();
            scheduler.rows.num_missing(num_rows) > self.num_idle_rows
        };
        let is_preempted = scheduler.request(head).is_preempted();
        if is_preempted || scheduler.config.policy.holds_rows() || !lacks_rows(head) {
            return None;
        }
        let claimant = RowUsage::of(scheduler, self.now)?.claimant(scheduler);
        claimant.filter(|&slot| !lacks_rows(slot))
    }
}
