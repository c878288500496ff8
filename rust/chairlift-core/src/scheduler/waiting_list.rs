//! What all waiting requests wait for, and those of a tenant in the order of the queue.

use super::{Explanation, Scheduler};
use crate::{
    ids::RequestId,
    kv_cache::CellUse,
    queue::{WaitCause, Waiter},
    request::{Request, State},
};

/// The waiting requests of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingList {
    /// The first of them: preempted ones, then new ones in order, then suspended ones.
    pub requests: Vec<(RequestId, Explanation)>,
    /// All of them; sequences of a preempted request count one by one.
    pub num_waiting: usize,
}

impl Scheduler {
    /// Waiting requests by what they wait for, in the order of [`WaitCause::ALL`]; O(1).
    pub(super) fn num_by_cause(&self) -> [usize; WaitCause::ALL.len()] {
        let mut counts = [0; WaitCause::ALL.len()];
        let cause = self.wait_clock.cause(Waiter::Preempted);
        let num_next = match self.wait_clock.turn() {
            None => self.queue.num_new(),
            Some(tenant) => self.queue.num_new_of(tenant),
        };
        counts[cause as usize] += self.queue.num_preempted() + self.num_with_parent + num_next;
        counts[WaitCause::Share as usize] += self.queue.num_new() - num_next;
        counts[WaitCause::Suspended as usize] += self.num_suspended;
        counts
    }

    /// The waiting requests of a tenant, the first `most` of them explained. Takes time in `most`, in the number of
    /// preempted requests and of tenants that wait, and where requests are suspended in that of slots.
    pub fn waiting_of(&self, tenant: &str, most: usize) -> WaitingList {
        let Some(tenant) = self.queue.shares.find(tenant) else {
            return WaitingList::default();
        };
        let mut list = WaitingList::default();
        let mut add = |id: RequestId, num_before: usize| {
            list.num_waiting += 1;
            if list.requests.len() < most
                && let Some(slot) = self.slots.find(id)
            {
                let request = self.request(slot);
                let explanation = self.explanation(request, num_before);
                list.requests.push((request.owner, explanation));
            }
        };
        for (num_before, id) in self.queue.preempted().enumerate() {
            let slot = self.slots.find(id);
            if slot.is_some_and(|slot| self.request(slot).tenant == tenant) {
                add(id, num_before);
            }
        }
        for (num_own, id) in self.queue.new_of(tenant).take(most).enumerate() {
            add(id, self.queue.num_before_own(tenant, num_own));
        }
        if self.num_suspended > 0 {
            let requests = self.slots.iter();
            let is_mine = |request: &&Request| request.tenant == tenant && request.is_live();
            let suspended = requests.filter(is_mine);
            for request in suspended.filter(|request| matches!(request.state, State::Suspended(_)))
            {
                add(request.id, self.num_before(request));
            }
        }
        list.num_waiting += self.queue.num_new_of(tenant).saturating_sub(most);
        list
    }

    /// How the KV blocks are used, by cells; `own` is the tenant's. Takes time in the number of cells.
    pub fn block_map(&self, tenant: &str) -> Vec<CellUse> {
        self.kv.block_map(self.queue.shares.find(tenant))
    }
}
