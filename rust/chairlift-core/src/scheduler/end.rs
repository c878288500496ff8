//! How requests end: by a deadline, from outside, or by what they sampled; and what is released then.

use super::Scheduler;
use crate::{
    events::{EndReason, Failure, RequestStats},
    ids::{Nanos, RequestId, Slot},
    request::{Request, State},
};

impl Scheduler {
    /// Ends a request in any state; false if it has ended already.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "each answer ends for it, and the caller has no use for it after"
    )]
    pub fn abort(&mut self, now: Nanos, request: RequestId, reason: EndReason) -> bool {
        self.wait_clock.advance(now);
        let sequences = self.slots.sequences(request);
        for &slot in sequences.iter().rev() {
            // An error has ended all at once.
            if self.slots.is_sequence_of(slot, request) {
                self.end_early(now, slot, reason.clone());
            }
        }
        self.sweep();
        !sequences.is_empty()
    }

    /// Ends what is due: requests that waited too long to start, and requests out of time.
    pub(super) fn expire(&mut self, now: Nanos) {
        while let Some(request) = self.deadlines.pop_due(now) {
            for slot in self.slots.sequences(request).into_iter().rev() {
                if self.slots.is_sequence_of(slot, request) {
                    self.expire_sequence(now, slot);
                }
            }
        }
        self.sweep();
    }

    fn expire_sequence(&mut self, now: Nanos, slot: Slot) {
        let due = |time: Option<Nanos>| time.is_some_and(|time| time <= now);
        let request = self.slots.live(slot);
        if due(request.timing.deadline) {
            self.end_early(now, slot, EndReason::TimeLimit);
        } else if due(request.timing.queue_deadline) && !request.has_started {
            self.end_early(now, slot, EndReason::Failed(Failure::QueueTimeout));
        }
    }

    /// Ends a request from outside a step: text that was held back is decided now, unless it failed.
    pub(super) fn end_early(&mut self, now: Nanos, slot: Slot, reason: EndReason) {
        let request = self.slots.live(slot);
        if !matches!(reason, EndReason::Failed(_)) {
            let start = self.events.text.len();
            request
                .text
                .finish(&self.token_table, &mut self.events.text);
            let (key, fields) = (request.event_key(), request.fields.as_deref_mut());
            self.events.tokens(key, start, fields, true, &[], 0);
        }
        self.end(now, slot, reason);
    }

    /// The one way out: emits the last event of a sequence. An error ends all sequences of its request.
    pub(super) fn end(&mut self, now: Nanos, slot: Slot, reason: EndReason) {
        let request = self.slots.live(slot);
        let (owner, answer) = (request.owner, request.event_key());
        if !matches!(reason, EndReason::Failed(_)) {
            let unspent = request.unspent_credit();
            let ends_all = matches!(reason, EndReason::Cancelled | EndReason::TimeLimit);
            let (stats, last) = self.close(now, slot);
            self.events.end(answer, reason, stats, last);
            if !last && !ends_all {
                let others = self.slots.sequences(owner);
                self.deal_credit(&others, unspent);
            }
            return;
        }
        let mut sequences = self.slots.sequences(owner);
        sequences.retain(|&other| other != slot);
        sequences.push(slot);
        // Siblings that wait for their parent end before it.
        sequences.sort_by_key(|&slot| self.slots.live(slot).parent.is_none());
        let mut stats = self.slots.live(slot).stats;
        (
            stats.prompt_tokens,
            stats.cached_tokens,
            stats.transferred_tokens,
        ) = (0, 0, 0);
        stats.finished = now;
        for other in sequences {
            let ended = self.close(now, other).0;
            stats.prompt_tokens += ended.prompt_tokens;
            stats.cached_tokens += ended.cached_tokens;
            stats.transferred_tokens += ended.transferred_tokens;
            stats.output_tokens += ended.output_tokens;
            if other == slot {
                stats.wait_times = ended.wait_times;
            }
        }
        self.events.end((owner, 0), reason, stats, true);
    }

    /// Ends a sequence without an event, and releases what no step in flight names; returns its stats, and whether it is the
    /// last of its request.
    fn close(&mut self, now: Nanos, slot: Slot) -> (RequestStats, bool) {
        self.stop_waiting(slot);
        self.share_wait(slot);
        let last = self.slots.leave_group(slot);
        let request = self.slots.live(slot);
        self.num_with_parent -= usize::from(request.state == State::WithParent);
        self.queue.shares.leave(now, request.tenant);
        request.state = State::Ended { row: request.row() };
        self.needs_sweep = true;
        request.stats.finished = now;
        request.stats.output_tokens = request.num_output();
        let stats = request.stats;
        if request.in_flight == 0 {
            self.release(slot);
        }
        (stats, last)
    }

    /// The one place that frees: blocks, row and slot of an ended request that no step names.
    pub(super) fn release(&mut self, slot: Slot) {
        let mut request = self.slots.release(slot);
        self.kv.note_last_state(&request.table);
        self.kv.release(&mut request.table);
        self.kv.forget_swapped(&mut request.table);
        match request.row() {
            Some(row) if self.config.policy.holds_rows() => {
                self.rows.hold(row);
                self.needs_sweep = true;
            }
            Some(row) => self.rows.release(row),
            None => {}
        }
    }

    /// Takes ended requests off the running list and ends the batch when it is empty. Every public call that may end
    /// a request finishes with it.
    pub(super) fn sweep(&mut self) {
        if !std::mem::take(&mut self.needs_sweep) {
            return;
        }
        let slots = &self.slots;
        self.running
            .retain(|&slot| slots.get(slot).is_some_and(Request::is_running));
        if self.running.is_empty() {
            self.rows.release_held();
        }
    }
}
