//! The end of a step: take the sampled tokens, or roll the step back.

use super::{Item, Scheduler, StepId, live};
use crate::{
    Nanos,
    error::StepError,
    events::{EndReason, Failure},
    request::{RequestId, Slot},
};

/// What the sampler gave for each sample slot of a step.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<'a> {
    /// Accepted tokens, slot after slot.
    pub tokens: &'a [i32],
    /// Of each slot: how many tokens, at least 1; or -1: the row was not finite, and its one token is ignored.
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
        let items = self.take_step(step)?;
        let (mut tokens, mut sample_slot, mut token_start) = (sampled.tokens, 0, 0);
        for &item in &items {
            let mut count = 0;
            if item.samples {
                count = sampled.counts[sample_slot];
                sample_slot += 1;
            }
            let (mine, rest) = tokens.split_at(count.unsigned_abs() as usize);
            self.complete(now, item, if count < 0 { &[] } else { mine }, token_start);
            tokens = rest;
            token_start += mine.len();
        }
        self.recycle(items);
        self.sweep();
        Ok(())
    }

    fn check_sampled(&self, step: StepId, sampled: Sampled<'_>) -> Result<(), StepError> {
        let oldest = self.in_flight.front().filter(|oldest| oldest.id == step);
        let oldest = oldest.ok_or(StepError::UnknownStep(step.0))?;
        let expected = oldest.items.iter().filter(|item| item.samples).count();
        let got = sampled.counts.len();
        if got != expected || sampled.counts.contains(&0) {
            return Err(StepError::WrongCounts { expected, got });
        }
        let expected = sampled
            .counts
            .iter()
            .map(|&count| count.unsigned_abs() as usize)
            .sum();
        let got = sampled.tokens.len();
        if got != expected {
            return Err(StepError::WrongTokens { expected, got });
        }
        Ok(())
    }

    /// One request's part of a step that succeeded. Its full columns become known only now, when they are written;
    /// those of a row that was not finite never do.
    fn complete(&mut self, now: Nanos, item: Item, tokens: &[i32], token_start: usize) {
        let vocab_size = self.config.vocab_size;
        let request = live(&mut self.requests, item.slot);
        request.in_flight -= 1;
        if !request.is_live() {
            if request.in_flight == 0 {
                self.release(item.slot);
            }
            return;
        }
        let valid = |&token: &i32| usize::try_from(token).is_ok_and(|token| token < vocab_size);
        if item.samples && (tokens.is_empty() || !tokens.iter().all(valid)) {
            self.end(now, item.slot, EndReason::Failed(Failure::NumericFault));
            return;
        }
        if self.config.prefix_cache && request.cache_write {
            self.kv
                .publish(&mut request.table, &request.tokens, item.end);
        }
        if item.samples {
            self.accept(now, item.slot, tokens, token_start);
        }
    }

    /// Appends sampled tokens to a request, up to the one that ends it.
    fn accept(&mut self, now: Nanos, slot: Slot, tokens: &[i32], token_start: usize) {
        let request = live(&mut self.requests, slot);
        let text_start = self.events.text.len();
        let out = &mut self.events.text;
        let mut end = None;
        let mut num_taken = 0;
        while end.is_none() && num_taken < tokens.len() {
            let token = tokens[num_taken];
            end = request.push(token, self.max_context_len, &self.token_table, out);
            num_taken += 1;
        }
        request.last_token_is_sampled = true;
        request.account.first_token.get_or_insert(now);
        if !matches!(end, None | Some(EndReason::StopString(_)))
            && let Some(stop) = request.text.finish(&self.token_table, out)
        {
            end = Some(EndReason::StopString(request.text.stop(stop).to_owned()));
        }
        self.events
            .tokens(request.id, text_start, &tokens[..num_taken], token_start);
        if let Some(reason) = end {
            self.end(now, slot, reason);
        }
    }

    /// Rolls a failed step back: the guilty requests fail, the others wait at the front and compute everything again,
    /// since what the step wrote cannot be trusted.
    ///
    /// # Errors
    /// If the step is not the oldest in flight.
    pub fn fail(
        &mut self,
        now: Nanos,
        step: StepId,
        guilty: &[RequestId],
    ) -> Result<(), StepError> {
        let items = self.take_step(step)?;
        // Youngest first, so that the oldest ends up at the front of the queue.
        for &Item { slot, .. } in items.iter().rev() {
            let request = live(&mut self.requests, slot);
            request.in_flight -= 1;
            if !request.is_live() {
                if request.in_flight == 0 {
                    self.release(slot);
                }
            } else if guilty.contains(&request.id) {
                self.end(now, slot, EndReason::Failed(Failure::StepFailed));
            } else {
                self.preempt(slot);
            }
        }
        self.recycle(items);
        self.sweep();
        Ok(())
    }

    /// Takes the oldest step out of flight, if that is the one.
    fn take_step(&mut self, step: StepId) -> Result<Vec<Item>, StepError> {
        let is_oldest = self
            .in_flight
            .front()
            .is_some_and(|oldest| oldest.id == step);
        let oldest = if is_oldest {
            self.in_flight.pop_front()
        } else {
            None
        };
        oldest
            .map(|step| step.items)
            .ok_or(StepError::UnknownStep(step.0))
    }

    /// Keeps the memory of a step's list for a later step.
    fn recycle(&mut self, mut items: Vec<Item>) {
        items.clear();
        self.spare_items.push(items);
    }
}
