//! Requests that wait until blocks of their prompts are loaded from a store outside of the pool.
//!
//! ```text
//! add -> missing_blocks, stored_blocks -> hold ... insert_blocks, insert_blocks ... insert_state -> release: in the queue as any other
//! ```
//!
//! A held request is suspended: deadlines, cancels and changes hold for it as for any suspended one, and it never has a row.
//! What is inserted is an entry of the prefix cache: if it is evicted before the request is admitted, it is computed.

use super::{Scheduler, slots::Slots};
use crate::{
    cost_model::Work,
    ids::{BlockId, NULL_BLOCK, Nanos, RequestId, Slot, Snapshot},
    kv_cache::{BlockUse, Inserted, KvCache, MissingBlocks, StateUse, Stored},
    request::{Origin, Request, State},
};

impl Scheduler {
    /// Tells which blocks and recurrent states are used from now on, and names those that requests lack.
    pub fn track_block_uses(&mut self) {
        self.kv.track_uses();
    }

    /// Moves the uses of blocks since the last call out. Their content stays until the next plan is carried out.
    pub fn take_block_uses(&mut self) -> Vec<BlockUse> {
        self.kv.take_uses()
    }

    /// Moves the uses of recurrent states since the last call out. Their content stays until the next plan is carried out.
    pub fn take_state_uses(&mut self) -> Vec<StateUse> {
        self.kv.take_state_uses()
    }

    /// The full blocks that a new request lacks and another server may have, and the state behind them: none if it may not read
    /// them, or could not begin behind them.
    pub fn missing_blocks(&mut self, request: RequestId) -> MissingBlocks {
        self.lacking(request, |kv, request, first| {
            kv.missing(&mut request.table, &request.tokens, first)
        })
    }

    /// Those of the longest beginning of a new request that a store has all of, the state behind it included, so that the request
    /// could begin behind it: none if that is no longer than what the prefix cache knows.
    pub fn stored_blocks(&mut self, request: RequestId, store: &impl Stored) -> MissingBlocks {
        self.lacking(request, |kv, request, first| {
            kv.stored(&mut request.table, &request.tokens, first, store)
        })
    }

    /// What a new request lacks behind the blocks that the prefix cache knows, and is inserted from now on.
    fn lacking(
        &mut self,
        request: RequestId,
        named: impl FnOnce(&KvCache, &mut Request, usize) -> MissingBlocks,
    ) -> MissingBlocks {
        let Some(slot) = self.new_in_queue(request) else {
            return MissingBlocks::default();
        };
        let request = self.slots.live(slot);
        let has_room = self.config.state_snapshots != Some(0);
        if !request.cache_read || !request.table.is_stored() || !has_room {
            return MissingBlocks::default();
        }
        let first = request.num_hits(&self.kv);
        let missing = named(&self.kv, request, first);
        request.inserted = Inserted::of(&missing);
        missing
    }

    /// The blocks of a new request from a block index on that another can find: none if it may not write them.
    pub fn block_names(&mut self, request: RequestId, first: usize) -> MissingBlocks {
        let Some(slot) = self.new_in_queue(request) else {
            return MissingBlocks::default();
        };
        let request = self.slots.live(slot);
        if !request.cache_write || !request.table.is_stored() {
            return MissingBlocks::default();
        }
        self.kv.missing(&mut request.table, &request.tokens, first)
    }

    /// How long computing tokens of a prompt takes; None before anything was measured.
    pub fn predict_prompt(&self, start: usize, count: usize) -> Option<Nanos> {
        let time = self.costs.predict(Work::of(start, count));
        (time > 0.0).then_some(time as Nanos)
    }

    /// Keeps a new request out of the queue until it is released; false if it is not a new one in the queue.
    pub fn hold(&mut self, now: Nanos, request: RequestId) -> bool {
        self.wait_clock.advance(now);
        let slot = self.new_in_queue(request);
        if let Some(slot) = slot {
            self.alter(slot, |scheduler| scheduler.slots.live(slot).is_held = true);
        }
        slot.is_some()
    }

    /// Lets a request that is held into the queue; nothing if it has ended.
    pub fn release_held(&mut self, now: Nanos, request: RequestId) {
        self.wait_clock.advance(now);
        if let Some(slot) = self.slots.first_sequence(request) {
            self.alter(slot, |scheduler| scheduler.slots.live(slot).is_held = false);
        }
    }

    /// Makes blocks known to the prefix cache as those of a held request from the number `first` on, `count` at most: the
    /// caller fills them before the next plan is carried out. The null block needs no filling.
    ///
    /// None if the request is not held any more; none while nothing can be inserted. A count of 0 asks whether it is held.
    pub fn insert_blocks(
        &mut self,
        request: RequestId,
        first: usize,
        count: usize,
    ) -> Option<Vec<BlockId>> {
        let request = held(&mut self.slots, request)?;
        if count == 0 {
            return Some(Vec::new());
        }
        let wanted = request.inserted.wanted;
        let (table, tokens) = (&mut request.table, &request.tokens);
        let inserted = self.kv.insert(table, tokens, wanted, (first, count));
        let (inserted, indices) = inserted.unwrap_or_default();
        for (&block, &block_index) in inserted.iter().zip(&indices) {
            if block != NULL_BLOCK {
                let first_kept = self.kv.first_kept(wanted);
                request.inserted.fill(block_index, first_kept);
            }
        }
        Some(inserted)
    }

    /// Makes a snapshot known as the recurrent state behind the last block that a held request lacked, whose blocks were inserted:
    /// the caller fills it before the next plan is carried out.
    ///
    /// None if the request is not held any more, or if there is nothing to fill.
    pub fn insert_state(&mut self, request: RequestId) -> Option<Snapshot> {
        let request = held(&mut self.slots, request)?;
        self.kv
            .insert_state(&request.table, request.inserted.wanted)
    }

    /// The slot of a request that never had a row, if it is in the queue.
    fn new_in_queue(&self, request: RequestId) -> Option<Slot> {
        let slot = self.slots.first_sequence(request)?;
        let state = self.request(slot).state;
        (state == State::Waiting(Origin::Fresh)).then_some(slot)
    }
}

/// A request that is held.
fn held(slots: &mut Slots, request: RequestId) -> Option<&mut Request> {
    let slot = slots.first_sequence(request)?;
    Some(slots.live(slot)).filter(|request| request.is_held)
}
