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
//! Drafts are proposed from outside ([`Scheduler::draft`]: what a grammar forces; [`Scheduler::draft_by_model`]), or looked up in
//! the sequence itself. Of all drafts of a step those are checked that pay ([`crate::speculation`]).
//!
//! Drafts use only what is left of a budget. They are put into a step that is planned without them, where its tokens, its time and the free blocks
//! leave room: which other requests are in the step, and with how many tokens, never depends on them. What a wrong draft wrote counts as
//! unwritten, and the blocks that only drafts needed are given back with the outcome. Where two steps may be in flight
//! drafts stay within the blocks of their request, since the later step is planned before the outcome.

use super::{Item, Scheduler, step::StepBuilder};
use crate::{
    cost_model::{CostModel, Work},
    ids::{Nanos, RequestId, Slot},
    request::{Request, RunnerView},
    speculation::{Acceptance, Candidate, Lookup, MODEL, ModelDrafts, Proposer, StepYield, choose},
};

/// Drafts of a row at most.
pub const MAX_DRAFTS: usize = 16;

/// An answer that a draft model may draft for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftCandidate {
    pub request: RequestId,
    pub index: u32,
    pub slot: Slot,
    /// Tokens of its prompt, and all that it has.
    pub num_prompt: usize,
    pub num_tokens: usize,
}

impl Request {
    /// The share of right drafts of whatever proposed its drafts; none for the lookup, which keeps its own.
    fn acceptance_of_drafts(&mut self) -> Option<&mut Acceptance> {
        self.drafting
            .proposer
            .place()
            .map(|place| &mut self.drafting.acceptance[place])
    }

    /// It decodes, nothing is proposed for it, and it may have more than one token yet.
    fn is_undrafted(&self) -> bool {
        let has_room = self.max_num_tokens.min(self.credit_end) > self.tokens.len() + 1;
        has_room && self.may_draft() && !self.is_paused && self.drafting.drafts.is_empty()
    }

    fn model_rate(&self) -> f64 {
        self.drafting.acceptance[MODEL].rate()
    }

    /// Whether its own tokens offer drafts that make a step of these decodes yield more than drafts of a draft model do, each of
    /// which takes `pass` nanoseconds.
    fn is_looked_up(&self, decodes: Work, pass: f64, costs: &CostModel) -> bool {
        let Some(lookup) = &self.drafting.lookup else {
            return false;
        };
        let mut found = Vec::new();
        lookup.propose(&self.tokens, MAX_DRAFTS, &mut found);
        let odds = found.iter().map(|&(_, odds)| odds);
        let check = costs.added(Work::sampled(self.tokens.len(), 1));
        let looked_up = StepYield::with_drafts(decodes, odds, check, costs);
        let rate = self.model_rate();
        let drawn = StepYield::with_model_drafts(decodes, rate, check + pass, costs);
        looked_up.is_better_than(drawn)
    }

    /// It decodes, its last token is known, and no step is to end before its next.
    fn may_draft(&self) -> bool {
        self.is_running() && self.in_flight == 0 && self.num_output() > 0 && self.num_pending() == 1
    }

    /// It is in the planned step and may draft: its last token is known and ends its part of the step.
    fn is_drafting(&self, item: &Item) -> bool {
        self.in_flight == 1 && self.num_output() > 0 && item.end == self.tokens.len()
    }

    /// Where nothing is proposed, takes up to `max` drafts from its own tokens, and writes them with their odds to `found`.
    fn look_up(&mut self, max: usize, found: &mut Vec<(i32, f64)>) {
        found.clear();
        if !self.drafting.drafts.is_empty() {
            self.drafting.drafts.truncate(max);
        } else if let Some(lookup) = &self.drafting.lookup {
            lookup.propose(&self.tokens, max, found);
            self.drafting
                .drafts
                .extend(found.iter().map(|&(token, _)| token));
            self.drafting.proposer = Proposer::Lookup;
        }
    }

    /// Appends its drafts and the probability of each; `looked_up` are those that it looked up.
    fn candidates(&self, row: usize, looked_up: &[(i32, f64)], candidates: &mut Vec<Candidate>) {
        let rate = self.drafting.proposer.place();
        let rate = rate.map_or(0.0, |place| self.drafting.acceptance[place].rate());
        let mut odds = 1.0;
        for i in 0..self.drafting.drafts.len() {
            odds = looked_up.get(i).map_or(odds * rate, |&(_, odds)| odds);
            let position = self.tokens.len() + i;
            candidates.push(Candidate {
                row,
                position,
                odds,
            });
        }
    }

    /// Indexes its new tokens, from which later drafts come.
    pub(super) fn index_tokens(&mut self) {
        let lookup = self
            .drafting
            .lookup
            .get_or_insert_with(|| Box::new(Lookup::new()));
        lookup.follow(&self.tokens, self.num_prompt);
    }

    /// The sampled tokens that count: each follows those before it, and only the last may differ from its draft. Learns from
    /// them how good the proposer is.
    pub(super) fn accepted<'a>(&mut self, sampled: &'a [i32]) -> &'a [i32] {
        let drafts = std::mem::take(&mut self.drafting.drafts);
        let pairs = sampled.iter().zip(&drafts);
        let num_right = pairs
            .take_while(|(sampled, draft)| sampled == draft)
            .count();
        if let Some(acceptance) = self.acceptance_of_drafts() {
            for i in 0..drafts.len().min(num_right + 1) {
                acceptance.observe(i < num_right);
            }
        }
        &sampled[..sampled.len().min(num_right + 1)]
    }
}

impl Scheduler {
    /// Proposes tokens that may follow the last token of an answer: up to [`MAX_DRAFTS`], and none from the first that is
    /// not in the vocabulary on. They hold for the next step that names the answer, take the place of earlier ones, and are
    /// given up if the answer loses its row before.
    ///
    /// False, and nothing changes, if steps have no drafts, or the answer does not decode: it has ended, waits, is paused or out of credit, has part
    /// of its prompt left or of what a preemption threw away, or a step in flight samples its next token.
    pub fn draft(&mut self, request: RequestId, index: u32, tokens: &[i32]) -> bool {
        self.propose(request, index, tokens, Proposer::Caller)
    }

    /// Proposes tokens like [`Scheduler::draft`], drawn by a draft model; their acceptance is counted apart.
    pub fn draft_by_model(&mut self, request: RequestId, index: u32, tokens: &[i32]) -> bool {
        self.propose(request, index, tokens, Proposer::Model)
    }

    fn propose(&mut self, request: RequestId, index: u32, tokens: &[i32], by: Proposer) -> bool {
        let vocab_size = self.config.vocab_size;
        let mut sequences = self.slots.sequences(request).into_iter();
        let slot = sequences.find(|&slot| self.request(slot).index == index);
        let may_draft = |&slot: &Slot| self.request(slot).may_draft();
        let Some(slot) = slot
            .filter(may_draft)
            .filter(|_| self.config.max_step_drafts > 0)
        else {
            return false;
        };
        let request = self.slots.live(slot);
        let known = |&token: &i32| usize::try_from(token).is_ok_and(|token| token < vocab_size);
        let known = tokens.iter().copied().take_while(known);
        request.drafting.drafts.clear();
        request.drafting.drafts.extend(known.take(MAX_DRAFTS));
        request.drafting.proposer = by;
        if !request.drafting.drafts.is_empty() && !self.drafted.contains(&slot) {
            self.drafted.push(slot);
        }
        true
    }

    /// The answers that a draft model is to draft for before the next step, and how many drafts each, with `pass` the
    /// nanoseconds that it takes to draw one for each of them. These are answers that decode, without drafts, of whose own tokens
    /// none promise more. 0 where no drafts pay: then less is held against the model, so that it is tried again.
    pub fn undrafted(&mut self, pass: Nanos, found: &mut Vec<DraftCandidate>) -> usize {
        found.clear();
        let (mut decodes, mut slots) = (Work::default(), Vec::new());
        for &slot in &self.running {
            let request = self.slots.live(slot);
            if request.is_decode() {
                decodes = decodes.and(Work::sampled(request.num_computed, 1));
            }
            if request.is_undrafted() {
                slots.push(slot);
            }
        }
        let pass = pass as f64;
        let share = pass / slots.len() as f64;
        let (mut rates, mut position) = (Vec::new(), 0);
        for slot in slots {
            let request = self.slots.live(slot);
            if request.is_looked_up(decodes, share, &self.costs) {
                continue;
            }
            rates.push(request.model_rate());
            position = position.max(request.tokens.len());
            found.push(DraftCandidate {
                request: request.owner,
                index: request.index,
                slot,
                num_prompt: request.num_prompt,
                num_tokens: request.tokens.len(),
            });
        }
        let config = &self.config;
        if rates.is_empty() || config.max_step_drafts == 0 {
            found.clear();
            return 0;
        }
        let drafts = ModelDrafts {
            rates: &rates,
            position,
            pass,
            max_drafts: config.max_step_drafts,
            budget: config.step_budget.map_or(f64::INFINITY, |time| time as f64),
        };
        let depth = drafts.depth(decodes, &self.costs);
        if depth == 0 {
            for answer in found.iter() {
                self.slots.live(answer.slot).drafting.acceptance[MODEL].fade();
            }
        }
        depth
    }

    /// The tokens of the live answer in a slot from `start` on; none if there is no such answer.
    pub fn tokens_from(&self, slot: Slot, start: usize) -> &[i32] {
        let request = self.slots.get(slot);
        let tokens = request.and_then(|request| request.tokens.get(start..));
        tokens.unwrap_or_default()
    }

    /// Lets later steps have up to `max` drafts each; with 0 they have none.
    pub fn set_max_step_drafts(&mut self, max: usize) {
        self.config.max_step_drafts = max;
    }

    /// After a step with drafts has brought so many tokens: all but the last of them are computed, and nothing else.
    pub(super) fn settle_drafts(&mut self, slot: Slot, num_taken: usize) {
        let request = self.slots.live(slot);
        request.num_computed += num_taken - 1;
        // Where the runner is depends on how many it counts.
        request.runner_view = RunnerView::Moved;
        let num_computed = request.num_computed;
        if request.cache_write {
            self.kv
                .publish(&mut request.table, &request.tokens, num_computed);
        }
        self.kv.shrink(&mut request.table, num_computed);
        self.kv.trim(&mut request.table, num_computed, num_computed);
    }
}

impl StepBuilder<'_> {
    /// Puts the drafts that pay into a planned step, as far as it leaves room for them.
    pub(super) fn schedule_drafts(&mut self) {
        let config = &self.scheduler.config;
        if config.max_step_drafts == 0
            || (self.scheduler.drafted.is_empty() && !config.prompt_lookup)
        {
            return;
        }
        let counts = self.choose_drafts();
        if let Some(counts) = &counts {
            for (row, &count) in counts.iter().enumerate() {
                self.items[row].num_samples += self.take_drafts(self.items[row].slot, count) as u32;
            }
            let (slots, items) = (&self.scheduler.slots, &self.items);
            let drafts = |slot: Slot| {
                let request = slots.get(slot);
                request.map_or(&[][..], |request| request.drafting.drafts.as_slice())
            };
            self.plan.insert_drafts(|row| drafts(items[row].slot));
        }
        // Those of a paused request wait on.
        let slots = &self.scheduler.slots;
        self.scheduler.drafted.retain(|&slot| {
            let request = slots.get(slot);
            request.is_some_and(|request| {
                request.in_flight == 0 && !request.drafting.drafts.is_empty()
            })
        });
    }

    /// How many drafts each row of the step has; None if no row has any.
    fn choose_drafts(&mut self) -> Option<Vec<usize>> {
        let scheduler = &mut *self.scheduler;
        let (mut candidates, mut looked_up) = (Vec::new(), Vec::new());
        for (row, item) in self.items.iter().enumerate() {
            let request = scheduler.slots.live(item.slot);
            if !request.is_drafting(item) {
                request.drafting.drafts.clear();
                continue;
            }
            // One more token is sampled than there are drafts.
            let room = request.max_num_tokens.min(request.credit_end) - item.end - 1;
            request.look_up(room.min(MAX_DRAFTS), &mut looked_up);
            request.candidates(row, &looked_up, &mut candidates);
        }
        if candidates.is_empty() {
            return None;
        }
        let mut counts = vec![0; self.items.len()];
        choose(
            &mut candidates,
            scheduler.config.max_step_drafts,
            self.decodes,
            &scheduler.costs,
            &mut counts,
        );
        Some(counts)
    }

    /// Cuts the drafts of a decode that is in the step to `max` and to what there is room for, and makes it; gives how many
    /// are left.
    fn take_drafts(&mut self, slot: Slot, max: usize) -> usize {
        let (scheduler, plan) = (&mut *self.scheduler, &mut *self.plan);
        let request = scheduler.slots.live(slot);
        if request.drafting.drafts.is_empty() {
            return 0;
        }
        if max == 0
            && let Some(acceptance) = request.acceptance_of_drafts()
        {
            // A proposer that was bad is tried again after a while.
            acceptance.fade();
        }
        let start = request.num_computed;
        let mut count = self.budget.drafts(&scheduler.costs, start, max);
        // Drafts leave each running request a block for its next token: they never make one lose its row.
        let headroom = scheduler.running.len() * scheduler.kv.num_groups();
        let headroom = (scheduler.config.steps_in_flight == 1).then_some(headroom);
        while count > 0
            && !scheduler
                .kv
                .has_room(&request.table, start + count, headroom)
        {
            count -= 1;
        }
        request.drafting.drafts.truncate(count);
        if count == 0 {
            return 0;
        }
        let has_grown = scheduler.kv.grow(&mut request.table, start + count);
        assert!(has_grown, "invariant: there is room");
        let row = request
            .row()
            .expect("invariant: a planned request has a row");
        request.table.take_updates(|group, block_index, block| {
            plan.set_block(group, row, block_index, block);
        });
        request.num_computed += count;
        let work = Work::sampled(start, count);
        self.work = self.work.and(work);
        self.budget.spend(&scheduler.costs, work);
        count
    }
}
