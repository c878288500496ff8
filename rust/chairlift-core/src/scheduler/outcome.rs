//! The end of a step: take the sampled tokens, or roll the step back.

use super::{Item, Scheduler, Step};
use crate::{
    error::StepError,
    events::{EndReason, Failure},
    ids::{Nanos, RequestId, Slot, StepId},
    queue::OUTPUT_COST,
    request::RunnerView,
};
use chairlift_draws::token::{NO_TOKEN_LEFT, TOO_COMPLEX};

/// What a token outside of the vocabulary says.
fn failure(sampled: i32) -> Failure {
    match sampled {
        NO_TOKEN_LEFT => Failure::NoTokenLeft,
        TOO_COMPLEX => Failure::ConstraintTooComplex,
        _ => Failure::NumericFault,
    }
}

/// What a step sampled for one sequence.
#[derive(Clone, Copy)]
struct Samples<'a> {
    tokens: &'a [i32],
    /// Where the step has the first of them.
    first_slot: usize,
}

impl Scheduler {
    /// Ends a step that succeeded: `sampled` has a token for each of its sample slots.
    ///
    /// A token outside of the vocabulary fails the request: [`NO_TOKEN_LEFT`] and [`TOO_COMPLEX`] by what they say,
    /// others because the logits were not finite. What is sampled after a draft counts if all drafts up to it are what
    /// was sampled before them.
    ///
    /// # Errors
    /// If the step is not the oldest in flight, or `sampled` does not fit it; then nothing has changed.
    pub fn update(&mut self, now: Nanos, step: StepId, sampled: &[i32]) -> Result<(), StepError> {
        let items = &self.check_oldest(step)?.items;
        let expected: usize = items.iter().map(|item| item.num_samples as usize).sum();
        if sampled.len() != expected {
            let got = sampled.len();
            return Err(StepError::WrongSamples { expected, got });
        }
        let oldest = self.in_flight.pop_front();
        let step = oldest.ok_or(StepError::UnknownStep(step.0))?;
        let began = step.planned_at.max(self.last_update);
        self.costs.observe(step.work, now.saturating_sub(began));
        self.last_update = now;
        self.last_step.begin(&step.items, step.preempted);
        let (mut first_slot, mut first_score) = (0, 0);
        for (index, &item) in step.items.iter().enumerate() {
            let end = first_slot + item.num_samples as usize;
            let samples = Samples {
                tokens: &sampled[first_slot..end],
                first_slot,
            };
            let was_live = self.slots.is_live(item.slot);
            let num_accepted = self.complete(now, item, samples, first_score);
            let is_finished = was_live && !self.slots.is_live(item.slot);
            let row = &mut self.last_step.rows[index];
            (row.num_accepted, row.is_finished) = (num_accepted, is_finished);
            first_slot = end;
            first_score += item.num_scores as usize;
        }
        self.recycle(step.items);
        self.sweep();
        Ok(())
    }

    /// One request's part of a step that succeeded. Its full blocks become known only now, when they are written;
    /// those of a row that was not finite never do. Returns how many drafts the answer took.
    fn complete(
        &mut self,
        now: Nanos,
        item: Item,
        samples: Samples<'_>,
        first_score: usize,
    ) -> u32 {
        let vocab_size = self.config.vocab_size;
        if !self.leave_step(item) {
            self.kv.drop_state(item.saved);
            return 0;
        }
        let request = self.slots.live(item.slot);
        let is_token =
            |&&token: &&i32| usize::try_from(token).is_ok_and(|token| token < vocab_size);
        let sampled = samples.tokens;
        let tokens = &sampled[..sampled.iter().take_while(is_token).count()];
        let has_drafts = item.num_samples > 1;
        let tokens = if has_drafts {
            request.accepted(tokens)
        } else {
            tokens
        };
        let has_samples = item.num_samples > 0;
        if has_samples && tokens.is_empty() {
            let failure = failure(sampled[0]);
            self.kv.drop_state(item.saved);
            self.end(now, item.slot, EndReason::Failed(failure));
            return 0;
        }
        request.has_swapped_in();
        self.send_prompt(item, first_score);
        let request = self.slots.live(item.slot);
        if request.cache_write {
            self.kv
                .publish(&mut request.table, &request.tokens, item.end);
        }
        if let Some(saved) = item.saved {
            let is_output = item.end > request.num_prompt;
            self.kv
                .publish_state(&mut request.table, saved, item.end, is_output);
        }
        if request.num_siblings > 0 && item.end >= request.num_prompt {
            self.fork(item.slot);
        }
        // A later step in flight begins where this one ended.
        let request = self.slots.live(item.slot);
        self.kv
            .trim(&mut request.table, request.tokens.len(), item.end);
        if !has_samples {
            return 0;
        }
        let samples = Samples { tokens, ..samples };
        let num_taken = self.accept(now, item.slot, samples, has_drafts);
        num_taken.saturating_sub(1) as u32
    }

    /// The prompt is computed, in a step that has succeeded: the siblings go on from its last token.
    pub(super) fn fork(&mut self, parent: Slot) {
        let siblings = self.slots.siblings(parent);
        let mut request = self.slots.lend(parent);
        request.num_siblings = 0;
        for slot in siblings {
            let sibling = self.slots.live(slot);
            sibling.parent = None;
            sibling.num_computed = sibling.num_prompt - 1;
            self.kv
                .fork(&request.table, &mut sibling.table, sibling.num_computed);
        }
        self.slots.put(parent, request);
    }

    /// Sends what a step adds to a prompt that is asked for.
    fn send_prompt(&mut self, item: Item, first_score: usize) {
        let request = self.slots.live(item.slot);
        let Some(prompt) = &mut request.prompt else {
            return;
        };
        let tokens = &request.tokens[..request.num_prompt];
        let (table, events) = (&self.token_table, &mut self.events);
        if prompt.send(request.owner, tokens, item.end, first_score, table, events) {
            request.prompt = None;
        }
    }

    /// A step no longer names the request, and its drafts no longer count; false if it has ended before. The last such step
    /// releases it.
    fn leave_step(&mut self, item: Item) -> bool {
        let request = self.slots.live(item.slot);
        request.in_flight -= 1;
        request.num_unknown -= usize::from(item.num_samples > 0);
        request.num_computed -= (item.num_samples as usize).saturating_sub(1);
        let (is_live, is_named) = (request.is_live(), request.in_flight > 0);
        if !is_live && !is_named {
            self.release(item.slot);
        }
        is_live
    }

    /// Appends sampled tokens to a request, up to the one that ends it; returns how many.
    fn accept(&mut self, now: Nanos, slot: Slot, samples: Samples<'_>, has_drafts: bool) -> usize {
        let Samples { tokens, first_slot } = samples;
        let request = self.slots.live(slot);
        let text_start = self.events.text.len();
        let out = &mut self.events.text;
        let mut end = None;
        let mut num_taken = 0;
        while end.is_none() && num_taken < tokens.len() {
            end = request.push(tokens[num_taken], &self.token_table, out);
            num_taken += 1;
        }
        request.runner_view = RunnerView::LastSampled;
        if request.num_output() == num_taken {
            request.stats.first_token = Some(now);
        }
        self.queue
            .shares
            .charge(request.tenant, OUTPUT_COST * num_taken as u64);
        if !matches!(end, None | Some(EndReason::StopString(_)))
            && let Some(stop) = request.text.finish(&self.token_table, out)
        {
            end = Some(EndReason::StopString(request.text.stop(stop).to_owned()));
        }
        let taken = &tokens[..num_taken];
        let (key, fields) = (request.event_key(), request.fields.as_deref_mut());
        let is_end = end.is_some();
        self.events
            .tokens(key, text_start, fields, is_end, taken, first_slot);
        if self.config.prompt_lookup && end.is_none() {
            request.index_tokens();
        }
        if has_drafts {
            self.settle_drafts(slot, num_taken);
        }
        if let Some(reason) = end {
            self.end(now, slot, reason);
        }
        num_taken
    }

    /// Rolls a failed step back, and with it the later step in flight, which read what this one wrote: neither is to be
    /// reported again. The requests `failing` fail. The others keep their rows and compute everything again, but for what the
    /// prefix cache knows, since what the steps wrote cannot be trusted.
    ///
    /// # Errors
    /// If the step is not the oldest in flight.
    pub fn fail(
        &mut self,
        now: Nanos,
        step: StepId,
        failing: &[RequestId],
    ) -> Result<(), StepError> {
        let oldest = self.check_oldest(step)?.items.clone();
        self.last_step.begin(&oldest, Vec::new());
        let items = oldest.into_iter().enumerate();
        let was_live: Vec<_> = items
            .filter(|(_, item)| self.slots.is_live(item.slot))
            .collect();
        // What it should have copied is anything.
        self.kv.forget_swaps();
        for request in self.slots.iter_mut() {
            self.kv.forget_swapped(&mut request.table);
        }
        let is_named = |slot: &Slot| {
            let request = self.slots.get(*slot);
            request.is_some_and(|request| {
                request.in_flight > 0 || request.runner_view == RunnerView::SwappingIn
            })
        };
        let mut named: Vec<_> = self.running.iter().copied().filter(is_named).collect();
        while let Some(step) = self.in_flight.pop_front() {
            self.last_step.preempted.extend(step.preempted);
            for &item in &step.items {
                self.kv.drop_state(item.saved);
                self.leave_step(item);
            }
            self.recycle(step.items);
        }
        for &slot in &named {
            let request = self.slots.get(slot);
            // One that has ended did so with another sequence of its request.
            let request = request.filter(|request| request.is_live());
            if request.is_some_and(|request| failing.contains(&request.owner)) {
                self.end(now, slot, EndReason::Failed(Failure::StepFailed));
            }
        }
        for (index, item) in was_live {
            self.last_step.rows[index].is_finished = !self.slots.is_live(item.slot);
        }
        named.retain(|&slot| self.slots.is_live(slot));
        self.roll_back(&named);
        self.sweep();
        Ok(())
    }

    /// Takes what they have computed from running requests, of which no step in flight names any: they keep their rows, and
    /// their next steps begin them again.
    fn roll_back(&mut self, named: &[Slot]) {
        for &slot in named {
            let request = self.slots.live(slot);
            self.kv.release(&mut request.table);
            request.reset_computed();
            request.runner_view = RunnerView::Restarting;
        }
    }

    fn check_oldest(&self, step: StepId) -> Result<&Step, StepError> {
        let oldest = self.in_flight.front().filter(|oldest| oldest.id == step);
        oldest.ok_or(StepError::UnknownStep(step.0))
    }

    /// Keeps the memory of a step's list for a later step.
    fn recycle(&mut self, mut items: Vec<Item>) {
        items.clear();
        self.spare_items.push(items);
    }
}
