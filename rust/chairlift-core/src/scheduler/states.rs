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

use super::step::StepBuilder;
use crate::{
    config::Config,
    ids::{Row, Slot, Snapshot},
    request::Request,
};

impl StepBuilder<'_> {
    /// Limits the `left` tokens that a request lacks from `start` on to those of its next chunk.
    pub(super) fn tokens_to_stop(&self, slot: Slot, start: usize, left: usize) -> usize {
        let config = &self.scheduler.config;
        if config.state_snapshots.is_none() {
            return left;
        }
        let request = self.scheduler.request(slot);
        let siblings_begin = (request.num_siblings > 0).then(|| request.num_prompt - 1);
        let saved = boundaries(config, request).into_iter().flatten();
        let stops = saved.chain(siblings_begin);
        let ahead = stops.filter(|&stop| start < stop && stop < start + left);
        ahead.min().map_or(left, |stop| stop - start)
    }

    /// Before the step a row that begins at `start` has the state behind the tokens before.
    pub(super) fn load_state(&mut self, slot: Slot, row: Row, start: usize) {
        let scheduler = &mut *self.scheduler;
        if scheduler.config.state_snapshots.is_none() || start == 0 {
            return;
        }
        let request = scheduler.slots.live(slot);
        let snapshot = scheduler.kv.read_state(&mut request.table);
        self.plan.load_state(row, snapshot);
    }

    /// Plans what a step that computes the tokens of a request up to `end` does with its state before and after it.
    pub(super) fn plan_states(&mut self, slot: Slot, start: usize, end: usize) -> Option<Snapshot> {
        let (scheduler, plan) = (&mut *self.scheduler, &mut *self.plan);
        scheduler.config.state_snapshots?;
        let request = scheduler.request(slot);
        let row = request.row()?;
        if request.num_siblings > 0 && start > 0 && start == request.num_prompt - 1 {
            for sibling in scheduler.slots.siblings(slot) {
                let sibling = scheduler.request(sibling).row();
                plan.copy_state(sibling.expect("invariant: siblings run with it"), row);
            }
        }
        let config = &scheduler.config;
        let is_output = end > request.num_prompt && saves_states(config, request);
        let is_saved = is_output || boundaries(config, request).contains(&Some(end));
        if !is_saved || !end.is_multiple_of(config.block_size) {
            return None;
        }
        let snapshot = scheduler.kv.reserve_state()?;
        plan.save_state(row, snapshot);
        Some(snapshot)
    }
}

/// Where a state is saved before the last token of a request is computed: the junction, and the last boundary.
fn boundaries(config: &Config, request: &Request) -> [Option<usize>; 2] {
    if !saves_states(config, request) {
        return [None; 2];
    }
    let size = config.block_size;
    let last = (request.num_tokens() - 1) / size * size;
    [request.table.junction(), Some(last)]
}

fn saves_states(config: &Config, request: &Request) -> bool {
    let has_room = config.state_snapshots.is_some_and(|count| count > 0);
    has_room && request.cache_write
}
