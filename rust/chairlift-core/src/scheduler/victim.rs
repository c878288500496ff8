//! Who gives way when blocks run short: not who came last, but who loses least.
//!
//! ```text
//! running, in order of admission   [ done for this step | i: needs a block |  candidates ... ]
//!                                    never                                    the fewest tokens to compute again, per block
//! ```
//!
//! The loss is counted in tokens, not in time, so that a trace is replayed as it was recorded. Who has given way before is
//! spared while there is another, so that nobody is sent to and fro; the oldest is never a candidate, so that the batch
//! always comes to its end.

use super::Scheduler;
use crate::{block_pool::BlockId, request::Slot};

/// What a preemption costs; the least is preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Loss {
    num_preemptions: usize,
    /// Tokens to compute again for each 1,024 blocks that become free.
    per_block: usize,
    num_tokens: usize,
}

impl Scheduler {
    /// Preempts the cheapest of `running[from..to]`; gives whether it would have decoded and how many entries of these are
    /// gone, or None if steps in flight name them all.
    pub(super) fn take_from_cheapest(&mut self, from: usize, to: usize) -> Option<(bool, usize)> {
        let candidates = (from..to).filter_map(|index| Some((self.loss(index)?, index)));
        // Of equals the youngest.
        let (_, index) = candidates.min_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)))?;
        let slot: Slot = self.running[index];
        let count = self.unlist(index).min(to - index);
        let is_decode = self.is_decode(slot);
        self.preempt(slot);
        Some((is_decode, count))
    }

    /// What is lost with a running request; None while a step in flight names it, or while it follows another.
    fn loss(&self, index: usize) -> Option<Loss> {
        let request = self.requests[self.running[index] as usize].as_ref();
        let request = request.expect("invariant: a listed slot holds a request");
        let is_private = |&block: &BlockId| self.kv.pool.num_references(block) == 1;
        let num_private = request.table.blocks().filter(is_private).count();
        let num_freed = num_private + request.table.promised();
        let num_tokens = request.num_computed;
        let may_go = request.in_flight == 0 && request.leader.is_none();
        may_go.then(|| Loss {
            num_preemptions: request.account.num_preemptions,
            per_block: (num_tokens << 10)
                .checked_div(num_freed)
                .unwrap_or(usize::MAX),
            num_tokens,
        })
    }
}
