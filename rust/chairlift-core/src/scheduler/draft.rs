//! Drafts: guesses of the tokens that follow, which a step checks beside the last token instead of one step each.
//!
//! ```text
//! tokens      ... a b            b is known, and not computed
//! proposed          c d e
//! the row       [ b c d e ]      1 + 3 tokens, and a sample after each
//! sampled         c d x y        c and d are what the model draws: they are accepted, x follows them, y follows a wrong e
//! tokens      ... a b c d x      as if the step had been three
//! ```
//!
//! Drafts use only what is left of a budget. They are put into a step that is planned without them, where its tokens, its time and the free blocks
//! leave room: which other requests are in the step, and with how many tokens, never depends on them. What a wrong draft wrote counts as
//! unwritten, and the blocks that only drafts needed are given back with the outcome. Where two steps may be in flight
//! drafts stay within the blocks of their request, since the later step is planned before the outcome.

use super::{Scheduler, live, step::StepBuilder};
use crate::{
    cost_model::Work,
    ids::{RequestId, Slot},
    request::Request,
};

/// Drafts of a row at most.
pub const MAX_DRAFTS: usize = 16;

impl Request {
    /// It decodes, its last token is known, and no step is to end before its next.
    fn may_draft(&self) -> bool {
        self.is_running() && self.in_flight == 0 && self.num_output() > 0 && self.num_pending() == 1
    }
}

impl Scheduler {
    /// Proposes tokens that may follow the last token of an answer: up to [`MAX_DRAFTS`], and none from the first that is
    /// not in the vocabulary on. They hold for the next step that names the answer, take the place of earlier ones, and are
    /// given up if the answer loses its row before.
    ///
    /// False, and nothing changes, if the answer does not decode: it has ended, waits, is paused or out of credit, has part
    /// of its prompt left or of what a preemption threw away, or a step in flight samples its next token.
    pub fn draft(&mut self, request: RequestId, index: u32, tokens: &[i32]) -> bool {
        let vocab_size = self.config.vocab_size;
        let mut sequences = self.sequences(request).into_iter();
        let slot = sequences.find(|&slot| self.request(slot).index == index);
        let Some(slot) = slot.filter(|&slot| self.request(slot).may_draft()) else {
            return false;
        };
        let request = live(&mut self.requests, slot);
        let known = |&token: &i32| usize::try_from(token).is_ok_and(|token| token < vocab_size);
        let known = tokens.iter().copied().take_while(known);
        request.drafts.clear();
        request.drafts.extend(known.take(MAX_DRAFTS));
        if !request.drafts.is_empty() && !self.drafted.contains(&slot) {
            self.drafted.push(slot);
        }
        true
    }
}

impl StepBuilder<'_> {
    /// Puts drafts into a planned step, in order of admission, as far as it leaves room for them.
    pub(super) fn schedule_drafts(&mut self) {
        if self.scheduler.drafted.is_empty() {
            return;
        }
        for row in 0..self.items.len() {
            self.items[row].num_samples += self.take_drafts(self.items[row].slot) as u32;
        }
        let (scheduler, items) = (&mut *self.scheduler, &self.items);
        let requests = &scheduler.requests;
        let drafts = |slot: Slot| {
            let request = requests[slot as usize].as_ref();
            request.map_or(&[][..], |request| request.drafts.as_slice())
        };
        self.plan.insert_drafts(|row| drafts(items[row].slot));
        // Those of a paused request wait on.
        scheduler.drafted.retain(|&slot| {
            let request = requests[slot as usize].as_ref();
            request.is_some_and(|request| request.in_flight == 0 && !request.drafts.is_empty())
        });
    }

    /// Cuts the drafts of a decode that is in the step to what there is room for, and makes it; gives how many are left.
    fn take_drafts(&mut self, slot: Slot) -> usize {
        let (scheduler, plan) = (&mut *self.scheduler, &mut *self.plan);
        let request = live(&mut scheduler.requests, slot);
        if request.drafts.is_empty() {
            return 0;
        }
        let start = request.num_computed;
        // One more token is sampled than there are drafts.
        let most = request.max_num_tokens.min(request.credit_end) - start - 1;
        let most = request.drafts.len().min(most);
        let mut count = self.budget.drafts(&scheduler.costs, start, most);
        let may_grow = scheduler.config.steps_in_flight == 1;
        while count > 0
            && !scheduler
                .kv
                .has_room(&request.table, start + count, may_grow)
        {
            count -= 1;
        }
        request.drafts.truncate(count);
        if count == 0 {
            return 0;
        }
        let has_grown = scheduler.kv.grow(&mut request.table, start + count);
        assert!(has_grown, "invariant: there is room");
        let row = request
            .row()
            .expect("invariant: a planned request has a row");
        request
            .table
            .take_updates(|group, column, block| plan.set_block(group, row, column, block));
        request.num_computed += count;
        self.work = self.work.and(Work::of(start, count));
        self.budget.spend(&scheduler.costs, start, count);
        count
    }
}

impl Scheduler {
    /// After a step with drafts has brought so many tokens: all but the last of them are computed, and nothing else.
    pub(super) fn settle_drafts(&mut self, slot: Slot, num_taken: usize) {
        let request = live(&mut self.requests, slot);
        request.num_computed += num_taken - 1;
        // Where the runner is depends on how many it counts.
        (request.last_token_is_sampled, request.is_moved) = (false, true);
        let num_computed = request.num_computed;
        if self.config.prefix_cache && request.cache_write {
            self.kv
                .publish(&mut request.table, &request.tokens, num_computed);
        }
        self.kv.shrink(&mut request.table, num_computed);
        self.kv.trim(&mut request.table, num_computed, num_computed);
    }
}

/// The sampled tokens that count: each follows those before it, and only the last may differ from the drafts.
pub(super) fn accepted<'a>(sampled: &'a [i32], drafts: &[i32]) -> &'a [i32] {
    let pairs = sampled.iter().zip(drafts);
    let num_right = pairs
        .take_while(|(sampled, draft)| sampled == draft)
        .count();
    &sampled[..sampled.len().min(num_right + 1)]
}
