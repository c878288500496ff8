//! Changes to a live request: they hold from the next step on.

use super::Scheduler;
use crate::{
    error::UnknownRequest,
    ids::{Nanos, RequestId, Slot},
    request::add_credit,
};
use chairlift_text::StopRegex;
use std::sync::Arc;

/// What `Scheduler::change` does to a request; what is not set stays as it is.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Replaces all limits and stops.
    pub stopping: Option<Stopping>,
    /// Replaces priority and deadlines.
    pub schedule: Option<Schedule>,
    /// More output tokens; nothing to a request without a credit limit.
    pub credit: u64,
    /// No more credit follows: each answer ends with the last token that its credit pays for, or at once if it has that
    /// token already; by its length, and one that has none because none is paid for as cancelled.
    pub credit_is_final: bool,
    /// Whether it pauses: its steps in flight are the last until it goes on.
    pub paused: Option<bool>,
}

/// When an answer ends; as in [`crate::NewRequest`].
#[derive(Clone, Debug, Default)]
pub struct Stopping {
    /// Output tokens, at most what the context leaves. If there are as many already, the answer ends at once.
    pub max_tokens: usize,
    pub min_tokens: usize,
    pub stop_token_ids: Vec<i32>,
    /// Looked for in text that was not given out before the change.
    pub stop: Vec<String>,
    /// Looked for in text that was not given out before the change.
    pub stop_regex: Option<Arc<StopRegex>>,
    pub include_stop: bool,
}

/// When a request runs; times count from its arrival.
#[derive(Clone, Copy, Debug, Default)]
pub struct Schedule {
    pub priority: i32,
    /// Fails when it has not started by then.
    pub queue_timeout: Option<Nanos>,
    /// Should have its first token by then; it only orders.
    pub time_to_first_token: Option<Nanos>,
    /// Ends with what there is by then.
    pub time_limit: Option<Nanos>,
}

impl Scheduler {
    /// Changes a live request in whatever state it is.
    ///
    /// # Errors
    /// If it has ended or never was; then nothing has changed.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "it holds for each answer, and the caller has no use for it after"
    )]
    pub fn change(
        &mut self,
        now: Nanos,
        request: RequestId,
        change: Change,
    ) -> Result<(), UnknownRequest> {
        self.wait_clock.advance(now);
        let sequences = self.slots.sequences(request);
        if sequences.is_empty() {
            return Err(UnknownRequest(request.0));
        }
        for &slot in &sequences {
            self.alter(slot, |scheduler| scheduler.change_sequence(slot, &change));
        }
        self.deal_credit(&sequences, change.credit);
        for slot in sequences.into_iter().rev() {
            if let Some(reason) = self.slots.live(slot).limit_reached() {
                self.end_early(now, slot, reason);
            }
        }
        self.sweep();
        Ok(())
    }

    fn change_sequence(&mut self, slot: Slot, change: &Change) {
        if let Some(schedule) = change.schedule {
            self.set_schedule(slot, schedule);
        }
        let request = self.slots.live(slot);
        request.is_paused = change.paused.unwrap_or(request.is_paused);
        request.credit_is_final |= change.credit_is_final;
        if let Some(stopping) = &change.stopping {
            self.set_stopping(slot, stopping.clone());
        }
    }

    fn set_stopping(&mut self, slot: Slot, new: Stopping) {
        let request = self.slots.live(slot);
        let end = request.num_prompt.saturating_add(new.max_tokens);
        request.max_num_tokens = end.min(self.max_context_len.max(request.num_prompt + 1));
        request.stops.min_tokens = new.min_tokens;
        request.stops.stop_token_ids = new.stop_token_ids.into();
        request.stops.include_stop = new.include_stop;
        let output = &request.tokens[request.num_prompt..];
        request.text.set_stops(
            &self.token_table,
            output,
            new.stop,
            new.stop_regex,
            new.include_stop,
        );
    }

    fn set_schedule(&mut self, slot: Slot, new: Schedule) {
        let request = self.slots.live(slot);
        let (arrival, num_prompt) = (request.stats.arrival, request.num_prompt);
        let time = |delay: Option<Nanos>| delay.map(|delay| arrival.saturating_add(delay));
        let (queue_deadline, first_token_by) =
            (time(new.queue_timeout), time(new.time_to_first_token));
        let start_by = self.start_by(num_prompt, queue_deadline, first_token_by);
        let request = self.slots.live(slot);
        let timing = &mut request.timing;
        timing.start_by = start_by;
        for (deadline, delay) in [
            (&mut timing.queue_deadline, new.queue_timeout),
            (&mut timing.deadline, new.time_limit),
        ] {
            let time = delay.map(|delay| arrival.saturating_add(delay));
            if let Some(time) = time.filter(|_| time != *deadline) {
                self.deadlines.push(time, request.owner);
            }
            *deadline = time;
        }
        timing.priority = new.priority;
        self.compact_deadlines();
    }

    /// Deals more credit out to the sequences of a request: evenly, and the remainder to those that have least left.
    pub(super) fn deal_credit(&mut self, slots: &[Slot], credit: u64) {
        if slots.is_empty() || credit == 0 {
            return;
        }
        let left = |slot: &Slot| {
            let request = self.slots.get(*slot);
            request.map_or(0, |request| {
                request.credit_end.saturating_sub(request.tokens.len())
            })
        };
        let mut order: Vec<_> = slots.iter().map(|slot| (left(slot), *slot)).collect();
        // The first of equal sequences comes first.
        order.sort_by_key(|&(left, _)| left);
        let num_sequences = slots.len() as u64;
        for (i, (_, slot)) in order.into_iter().enumerate() {
            let more = credit / num_sequences + u64::from((i as u64) < credit % num_sequences);
            self.alter(slot, |scheduler| {
                let request = scheduler.slots.live(slot);
                request.credit_end = add_credit(request.credit_end, more);
            });
        }
    }
}
