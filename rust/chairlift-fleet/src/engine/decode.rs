//! Requests of a decode replica whose blocks come from a prefill replica.

use std::collections::BTreeMap;

use chairlift_core::{Nanos, RequestId, Scheduler};

use crate::{
    outcomes::Transfers,
    roles::{MAX_LIVE, MIN_SAVED, MIN_TOKENS, Message, Missing, limit},
};

/// A request that waits for its blocks.
#[derive(Clone, Debug)]
struct Held {
    id: RequestId,
    missing: Missing,
    num_received: usize,
    num_placed: usize,
    /// No more will come.
    is_over: bool,
}

/// The requests that wait, by their index.
#[derive(Clone, Debug, Default)]
pub(super) struct Loader {
    held: BTreeMap<u32, Held>,
}

impl Loader {
    /// Holds a new request that lacks many blocks, and says what it wants.
    pub(super) fn begin(
        &mut self,
        now: Nanos,
        (index, id): (u32, RequestId),
        queue_timeout: Option<Nanos>,
        scheduler: &mut Scheduler,
        transfers: &mut Transfers,
    ) -> Option<Message> {
        let block_size = scheduler.config().block_size;
        let blocks = scheduler.missing_blocks(id);
        let (first, count) = (blocks.first, blocks.names.len());
        let predicted = scheduler.predict_prompt(first * block_size, count * block_size);
        let is_short = predicted.is_some_and(|predicted| predicted < MIN_SAVED);
        if is_short || count * block_size < MIN_TOKENS {
            return None;
        }
        if self.held.len() == MAX_LIVE {
            transfers.num_local += 1;
            return None;
        }
        if !scheduler.hold(now, id) {
            return None;
        }
        let missing = Missing {
            index,
            first,
            count,
        };
        let held = Held {
            id,
            missing,
            num_received: 0,
            num_placed: 0,
            is_over: false,
        };
        self.held.insert(index, held);
        let limit = limit(predicted, queue_timeout);
        Some(Message::Wanted { missing, limit })
    }

    /// All blocks before the block index `end` have come.
    pub(super) fn received(&mut self, index: u32, end: usize) {
        if let Some(held) = self.held.get_mut(&index) {
            held.num_received = end - held.missing.first;
        }
    }

    /// No more blocks come.
    pub(super) fn over(&mut self, index: u32) {
        if let Some(held) = self.held.get_mut(&index) {
            held.is_over = true;
        }
    }

    /// Lets a request go on whose blocks come too late.
    pub(super) fn late(
        &mut self,
        now: Nanos,
        index: u32,
        scheduler: &mut Scheduler,
        transfers: &mut Transfers,
    ) {
        if let Some(held) = self.held.remove(&index) {
            transfers.num_partial += 1;
            scheduler.release_held(now, held.id);
        }
    }

    /// Places blocks that have come, and lets requests go on for which that is all.
    pub(super) fn place(
        &mut self,
        now: Nanos,
        scheduler: &mut Scheduler,
        transfers: &mut Transfers,
    ) {
        self.held.retain(|_, held| {
            let start = held.missing.first + held.num_placed;
            let count = held.num_received - held.num_placed;
            let Some(blocks) = scheduler.insert_blocks(held.id, start, count) else {
                // It has ended otherwise.
                return false;
            };
            held.num_placed += blocks.len();
            let is_whole = held.num_placed == held.missing.count;
            let has_ended = is_whole || (held.is_over && held.num_placed == held.num_received);
            if has_ended {
                transfers.num_whole += u64::from(is_whole);
                transfers.num_partial += u64::from(!is_whole);
                scheduler.release_held(now, held.id);
            }
            !has_ended
        });
    }
}
