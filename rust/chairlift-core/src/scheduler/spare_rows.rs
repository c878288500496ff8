//! Some rows are kept for tenants that have less than their share, so that whoever comes seldom need not wait until one
//! becomes free: of 32 rows one, and of 16 or more one at least.
//!
//! ```text
//! rows   a a a a a a a a a a a a a a a .     a waits, b was here 10 s ago: the row stays free
//!        a a a a a a a a a a a a a a a b     b comes and joins the next step
//!        a a a a a a . a a a a a . a a b     one of the rows that a leaves is a's again
//! ```
//!
//! Whoever has to leave them is passed by who need not, even if that one was served more: it could not have them anyway.

use super::{Scheduler, crowd::Crowd, slot_of};
use crate::{Nanos, request::Slot};

/// Rows of a batch that can spare one.
const ROWS_TO_SPARE: usize = 16;

/// Of so many rows one is kept.
const ROWS_PER_SPARE: usize = 32;

impl Scheduler {
    /// Who joins next: the head of the queue, or whoever passes it; None if the rows that are free are kept for others.
    pub(super) fn next_to_join(&self, now: Nanos, head: Slot) -> Option<Slot> {
        let Some(crowd) = self.crowd_that_keeps_rows(now, head) else {
            return Some(head);
        };
        let passes = |tenant| !crowd.has_share(tenant);
        slot_of(&self.requests, self.queue.first_new(passes)?)
    }

    /// The rows by tenant, if the request has to leave those that are free to others: its tenant has its share of the rows
    /// (all, by the number of tenants who are here or were lately), and one of them has not. Where somebody is suspended, the
    /// row of that one can be had instead.
    fn crowd_that_keeps_rows(&self, now: Nanos, slot: Slot) -> Option<Crowd> {
        let request = self.requests[slot as usize].as_ref()?;
        let num_rows = self.config.max_num_seqs;
        let num_spare = (num_rows / ROWS_PER_SPARE).max(1);
        let can_spare =
            num_rows >= ROWS_TO_SPARE && !self.config.policy.holds_rows() && self.num_idle == 0;
        let num_left = self.rows.num_free().checked_sub(request.num_rows());
        if !can_spare || request.is_preempted() || num_left.is_some_and(|left| left >= num_spare) {
            return None;
        }
        let crowd = self.crowd(now)?;
        let mut expected = self.queue.shares.expected(now);
        let is_kept =
            crowd.has_share(request.tenant) && !expected.all(|other| crowd.has_share(other));
        is_kept.then_some(crowd)
    }
}
