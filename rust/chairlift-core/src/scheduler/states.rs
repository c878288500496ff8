//! Recurrent states of a hybrid: which a plan loads, copies and saves, and where a chunk ends for it.
//!
//! ```text
//! prompt    [ known, shared with others | alone, whole blocks | rest ]
//! chunks    |-------------------------->|-------------------->|----->|    and one token before the last for siblings
//! saved                              junction             last boundary
//! ```
//!
//! A request begins behind blocks that the prefix cache knows only where it has a snapshot of the state, too. A *junction*
//! is a boundary up to which it knows the blocks alone: the prompts of others branch off there, so that the next one
//! is to begin there. While an answer grows, the snapshot at its last full block takes the place of the one before.

use super::Scheduler;
use crate::{
    ids::{Row, Slot, Snapshot},
    plan::Plan,
    request::Request,
};

impl Scheduler {
    /// How many of the `left` tokens that a request lacks from `start` on its next chunk may have.
    pub(super) fn tokens_to_stop(&self, slot: Slot, start: usize, left: usize) -> usize {
        if self.config.state_snapshots.is_none() {
            return left;
        }
        let request = self.request(slot);
        let siblings_begin = (request.num_siblings > 0).then(|| request.num_prompt - 1);
        let saved = self.boundaries(request).into_iter().flatten();
        let stops = saved.chain(siblings_begin);
        let ahead = stops.filter(|&stop| start < stop && stop < start + left);
        ahead.min().map_or(left, |stop| stop - start)
    }

    /// Where a state is saved before the last token of a request is computed: the junction, and the last boundary.
    fn boundaries(&self, request: &Request) -> [Option<usize>; 2] {
        if !self.saves_states(request) {
            return [None; 2];
        }
        let size = self.config.block_size;
        let last = (request.num_tokens() - 1) / size * size;
        [request.table.junction(), Some(last)]
    }

    fn saves_states(&self, request: &Request) -> bool {
        let has_room = self.config.state_snapshots.is_some_and(|count| count > 0);
        has_room && self.config.prefix_cache && request.cache_write
    }

    /// Before the step a row that begins at `start` has the state behind the tokens before.
    pub(super) fn load_state(&mut self, slot: Slot, row: Row, start: usize, plan: &mut Plan) {
        if self.config.state_snapshots.is_none() || start == 0 {
            return;
        }
        let request = self.slots.live(slot);
        let snapshot = self.kv.read_state(&mut request.table);
        plan.load_state(row, snapshot);
    }

    /// Plans what a step that computes the tokens of a request up to `end` does with its state before and after it.
    pub(super) fn plan_states(
        &mut self,
        slot: Slot,
        start: usize,
        end: usize,
        plan: &mut Plan,
    ) -> Option<Snapshot> {
        self.config.state_snapshots?;
        let request = self.request(slot);
        let row = request.row()?;
        if request.num_siblings > 0 && start > 0 && start == request.num_prompt - 1 {
            for sibling in self.slots.siblings(slot) {
                let sibling = self.request(sibling).row();
                plan.copy_state(sibling.expect("invariant: siblings run with it"), row);
            }
        }
        let is_output = end > request.num_prompt && self.saves_states(request);
        let is_saved = is_output || self.boundaries(request).contains(&Some(end));
        if !is_saved || !end.is_multiple_of(self.config.block_size) {
            return None;
        }
        let snapshot = self.kv.reserve_state()?;
        plan.save_state(row, snapshot);
        Some(snapshot)
    }
}
