//! Whose prompts are computed first where tenants compete: those of tenants below their share of the rows.
//!
//! ```text
//! a has its share of the rows (all, by the number of tenants who are here or were lately); b has not
//!
//! budget  | decodes | oldest | prompts of b that have begun | b joins, if served no more | prompts of a | a joins, ... |
//! ```
//!
//! Otherwise who comes seldom would get a row at once and wait for what others have begun. That a newcomer was served less
//! (virtual token counters) bounds how long it makes them wait: each that joins is charged for its prompt.

use super::{Item, Scheduler, budget::Budget, live};
use crate::{Nanos, plan::Plan, request::Slot, shares::Tenant};

/// The rows by tenant.
pub(super) struct Crowd {
    num_used: Vec<usize>,
    num_tenants: usize,
    num_rows: usize,
}

impl Crowd {
    pub(super) fn has_share(&self, tenant: Tenant) -> bool {
        self.num_used[tenant as usize] * self.num_tenants >= self.num_rows
    }
}

impl Scheduler {
    /// Who has how many rows now; None if there is one tenant.
    pub(super) fn crowd(&self, now: Nanos) -> Option<Crowd> {
        if self.queue.shares.num_tenants() < 2 {
            return None;
        }
        let mut num_used = vec![0; self.queue.shares.num_places()];
        for &slot in &self.running {
            if let Some(request) = &self.requests[slot as usize] {
                num_used[request.tenant as usize] += 1;
            }
        }
        Some(Crowd {
            num_used,
            num_tenants: self.queue.shares.expected(now).count(),
            num_rows: self.config.max_num_seqs,
        })
    }

    /// Whether a prompt that has begun lets others go first; they go on in [`Self::schedule_crowd`]. The oldest never does.
    pub(super) fn steps_back(&self, crowd: Option<&Crowd>, slot: Slot, items: &[Item]) -> bool {
        let (Some(crowd), Some(request)) = (crowd, &self.requests[slot as usize]) else {
            return false;
        };
        let is_in_prompt = request.num_computed < request.num_prompt && request.num_pending() > 1;
        !items.is_empty() && is_in_prompt && crowd.has_share(request.tenant)
    }

    /// Whether who waits may join before those who stepped back go on.
    pub(super) fn goes_before_the_crowd(&self, now: Nanos, tenant: Tenant) -> bool {
        let shares = &self.queue.shares;
        let others = self.crowding.iter();
        let mut others = others.filter_map(|&slot| self.requests[slot as usize].as_ref());
        !self.crowding.is_empty()
            && others.all(|other| shares.served(tenant) <= shares.served(other.tenant))
            && self
                .crowd(now)
                .is_some_and(|crowd| !crowd.has_share(tenant))
    }

    /// Who stepped back goes on with the budget that is left.
    pub(super) fn schedule_crowd(
        &mut self,
        now: Nanos,
        budget: &mut Budget,
        plan: &mut Plan,
        items: &mut Vec<Item>,
    ) {
        let mut crowding = std::mem::take(&mut self.crowding);
        for slot in crowding.drain(..) {
            let request = live(&mut self.requests, slot);
            let (start, pending) = (request.num_computed, request.num_pending());
            let count = budget.chunk(&self.costs, start, pending);
            if count > 0 {
                let scheduled = self.schedule_tokens(now, slot, count, plan, items);
                assert!(scheduled, "invariant: the blocks of a prompt are promised");
                budget.spend(&self.costs, start, count);
            }
        }
        self.crowding = crowding;
    }
}
