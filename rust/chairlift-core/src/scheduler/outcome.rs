//! The end of a step: take the sampled tokens, or roll the step back.

use super::{Item, Scheduler, Step, draft::accepted, live};
use crate::{
    error::StepError,
    events::{EndReason, Failure},
    ids::{Nanos, RequestId, Slot, StepId},
    queue::OUTPUT_COST,
    request::Request,
};

/// What the sampler gave for each sample slot of a step.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<'a> {
    /// Sampled tokens, slot after slot.
    pub tokens: &'a [i32],
    /// Of each slot: how many tokens, at least 1; or -1: the row was not finite, and its one token is ignored. Where
    /// two steps may be in flight at most 1: the later step goes on from it. Nor more of each slot of a row with drafts:
    /// what is sampled after a draft counts if all drafts up to it are what was sampled before them.
    pub counts: &'a [i32],
}

impl Scheduler {
    /// Ends a step that succeeded.
    ///
    /// # Errors
    /// If the step is not the oldest in flight, or `sampled` does not fit it; then nothing has changed.
    pub fn update(
        &mut self,
        now: Nanos,
        step: StepId,
        sampled: Sampled<'_>,
    ) -> Result<(), StepError> {
        self.check_sampled(step, sampled)?;
        let oldest = self.in_flight.pop_front();
        let step = oldest.ok_or(StepError::UnknownStep(step.0))?;
        let began = step.planned_at.max(self.last_update);
        self.costs.observe(step.work, now.saturating_sub(began));
        self.last_update = now;
        let items = step.items;
        let Sampled {
            mut tokens,
            counts: mut all_counts,
        } = sampled;
        let mut token_start = 0;
        for &item in &items {
            let counts;
            (counts, all_counts) = all_counts.split_at(item.num_samples as usize);
            let (num_tokens, num_finite) = match *counts {
                // Nearly always: a decode needs no loop.
                [count] => (count.unsigned_abs() as usize, count.max(0) as usize),
                _ => num_tokens(counts),
            };
            let (mine, rest) = tokens.split_at(num_tokens);
            self.complete(now, item, &mine[..num_finite], token_start);
            tokens = rest;
            token_start += num_tokens;
        }
        self.recycle(items);
        self.sweep();
        Ok(())
    }

    fn check_sampled(&self, step: StepId, sampled: Sampled<'_>) -> Result<(), StepError> {
        let items = &self.check_oldest(step)?.items;
        let mut counts = sampled.counts.iter();
        let (mut num_slots, mut num_tokens, mut all_fit) = (0, 0, true);
        for item in items {
            let takes_many = self.config.steps_in_flight == 1 && item.num_samples == 1;
            let most = if takes_many { i32::MAX } else { 1 };
            num_slots += item.num_samples as usize;
            for &count in counts.by_ref().take(item.num_samples as usize) {
                all_fit &= count != 0 && count <= most;
                num_tokens += count.unsigned_abs() as usize;
            }
        }
        let (expected, got) = (num_slots, sampled.counts.len());
        if got != expected || !all_fit {
            return Err(StepError::WrongCounts { expected, got });
        }
        let (expected, got) = (num_tokens, sampled.tokens.len());
        if got != expected {
            return Err(StepError::WrongTokens { expected, got });
        }
        Ok(())
    }

    /// One request's part of a step that succeeded. Its full columns become known only now, when they are written;
    /// those of a row that was not finite never do.
    fn complete(&mut self, now: Nanos, item: Item, tokens: &[i32], token_start: usize) {
        let vocab_size = self.config.vocab_size;
        if !self.leave_step(item) {
            return;
        }
        let request = live(&mut self.requests, item.slot);
        let has_drafts = item.num_samples > 1;
        let tokens = if has_drafts {
            accepted(tokens, &std::mem::take(&mut request.drafts))
        } else {
            tokens
        };
        let valid = |&token: &i32| usize::try_from(token).is_ok_and(|token| token < vocab_size);
        let samples = item.num_samples > 0;
        if samples && (tokens.is_empty() || !tokens.iter().all(valid)) {
            self.end(now, item.slot, EndReason::Failed(Failure::NumericFault));
            return;
        }
        request.comes_back = false;
        if self.config.prefix_cache && request.cache_write {
            self.kv
                .publish(&mut request.table, &request.tokens, item.end);
        }
        if request.num_siblings > 0 && item.end >= request.num_prompt {
            self.fork(item.slot);
        }
        // A later step in flight begins where this one ended.
        let request = live(&mut self.requests, item.slot);
        self.kv
            .trim(&mut request.table, request.tokens.len(), item.end);
        if samples {
            self.accept(now, item.slot, tokens, token_start, has_drafts);
        }
    }

    /// A step no longer names the request, and its drafts no longer count; false if it has ended before. The last such step
    /// releases it.
    fn leave_step(&mut self, item: Item) -> bool {
        let request = live(&mut self.requests, item.slot);
        request.in_flight -= 1;
        request.num_unknown -= usize::from(item.num_samples > 0);
        request.num_computed -= (item.num_samples as usize).saturating_sub(1);
        let (is_live, is_named) = (request.is_live(), request.in_flight > 0);
        if !is_live && !is_named {
            self.release(item.slot);
        }
        is_live
    }

    /// Appends sampled tokens to a request, up to the one that ends it or the last that its credit pays for.
    fn accept(
        &mut self,
        now: Nanos,
        slot: Slot,
        tokens: &[i32],
        token_start: usize,
        has_drafts: bool,
    ) {
        let request = live(&mut self.requests, slot);
        let text_start = self.events.text.len();
        let out = &mut self.events.text;
        let mut end = None;
        let mut num_taken = 0;
        let most = tokens.len().min(request.credit_end - request.tokens.len());
        while end.is_none() && num_taken < most {
            let token = tokens[num_taken];
            end = request.push(token, &self.token_table, out);
            num_taken += 1;
        }
        // The runner goes on from the last of all tokens, if that was taken.
        request.last_token_is_sampled = num_taken == tokens.len();
        request.stats.first_token.get_or_insert(now);
        self.queue
            .shares
            .charge(request.tenant, OUTPUT_COST * num_taken as u64);
        if !matches!(end, None | Some(EndReason::StopString(_)))
            && let Some(stop) = request.text.finish(&self.token_table, out)
        {
            end = Some(EndReason::StopString(request.text.stop(stop).to_owned()));
        }
        self.events.tokens(
            request.event_key(),
            text_start,
            &tokens[..num_taken],
            token_start,
        );
        if has_drafts {
            self.settle_drafts(slot, num_taken);
        }
        if let Some(reason) = end {
            self.end(now, slot, reason);
        }
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
        self.check_oldest(step)?;
        // What it should have copied is anything.
        self.kv.forget_swaps();
        for request in self.requests.iter_mut().flatten() {
            self.kv.forget_swapped(&mut request.table);
        }
        let is_named = |slot: &Slot| {
            let request = self.requests[*slot as usize].as_ref();
            request.is_some_and(|request| request.in_flight > 0 || request.comes_back)
        };
        let mut named: Vec<_> = self.running.iter().copied().filter(is_named).collect();
        while let Some(step) = self.in_flight.pop_front() {
            for &item in &step.items {
                self.leave_step(item);
            }
            self.recycle(step.items);
        }
        for &slot in &named {
            let request = self.requests[slot as usize].as_ref();
            // One that has ended did so with another sequence of its request.
            let request = request.filter(|request| request.is_live());
            if request.is_some_and(|request| failing.contains(&request.owner)) {
                self.end(now, slot, EndReason::Failed(Failure::StepFailed));
            }
        }
        named.retain(|&slot| {
            let request = self.requests[slot as usize].as_ref();
            request.is_some_and(Request::is_live)
        });
        self.roll_back(&named);
        self.sweep();
        Ok(())
    }

    /// Takes what they have computed from running requests, of which no step in flight names any: they keep their rows, and
    /// their next steps begin them again.
    fn roll_back(&mut self, named: &[Slot]) {
        for &slot in named {
            let request = live(&mut self.requests, slot);
            self.kv.release(&mut request.table);
            request.lose_computed();
            request.restarts = true;
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

/// Tokens of slots with such counts, one where the row was not finite, too; and of the slots before that one.
fn num_tokens(counts: &[i32]) -> (usize, usize) {
    let sum = |counts: &[i32]| {
        counts
            .iter()
            .map(|count| count.unsigned_abs() as usize)
            .sum()
    };
    let num_finite = counts.iter().take_while(|&&count| count > 0).count();
    (sum(counts), sum(&counts[..num_finite]))
}
