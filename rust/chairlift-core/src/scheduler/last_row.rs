//! The last row is kept for tenants that have less than their share of the rows, so that whoever comes seldom need not wait
//! until a row becomes free.
//!
//! ```text
//! rows   a a a a a a a a a a a a a a a .     a waits, b was here 10 s ago: the row stays free
//!        a a a a a a a a a a a a a a a b     b comes and joins the next step
//!        a a a a a a . a a a a a . a a b     one of the rows that a leaves is a's again
//! ```

use super::Scheduler;
use crate::{Nanos, shares::Tenant};

/// Rows of a batch that can spare one.
pub const ROWS_TO_SPARE: usize = 16;

impl Scheduler {
    /// Whether a new request of this tenant, which takes so many rows, has to leave the last free one to others: the tenant
    /// has its share of the rows (all, by the number of tenants who are here or were lately), and one of them has not.
    /// Where somebody is parked, the row of that one can be had instead.
    pub(super) fn keeps_last_row_from(
        &self,
        now: Nanos,
        tenant: Tenant,
        num_wanted: usize,
    ) -> bool {
        let num_rows = self.config.max_num_seqs;
        let can_spare =
            num_rows >= ROWS_TO_SPARE && !self.config.policy.holds_rows() && self.num_idle == 0;
        if !can_spare || self.rows.num_free() != num_wanted || self.queue.shares.num_tenants() < 2 {
            return false;
        }
        let running = self.running.iter();
        let running = running.filter_map(|&slot| self.requests[slot as usize].as_ref());
        let mut num_used = vec![0; self.queue.shares.num_places()];
        running.for_each(|request| num_used[request.tenant as usize] += 1);
        let num_tenants = self.queue.shares.expected(now).count();
        let has_share = |tenant: Tenant| num_used[tenant as usize] * num_tenants >= num_rows;
        has_share(tenant) && !self.queue.shares.expected(now).all(has_share)
    }
}
