//! Requests that may not go on ("suspended": paused, or without credit), and the line between them and those that may.
//!
//! ```text
//!                 may go on          suspended
//!   with a row    running            running, keeps row and blocks until somebody needs them
//!   without       queue              outside the queue
//! ```
//!
//! Suspended requests with a row are the first to be preempted, the youngest first: by a running request that needs a block,
//! and by the head of the queue if it can join then. They take nothing from anybody, and come back as the preempted do.

use super::{Scheduler, live};
use crate::{
    cost_model::Work,
    request::{Request, Slot, State},
};

impl Scheduler {
    /// A request without a row waits: in the queue, or outside while it may not go on.
    pub(super) fn wait(&mut self, slot: Slot) {
        let request = live(&mut self.requests, slot);
        self.num_waiting_tokens += request.tokens.len();
        if request.is_suspended() {
            request.state = State::Suspended;
            self.num_outside += 1;
        } else {
            request.state = State::Waiting;
            self.queue
                .insert(request.tenant, request.is_new(), request.place());
        }
        self.begin_wait(slot);
    }

    /// Ends what `wait` began; false if the request does not wait.
    pub(super) fn stop_waiting(&mut self, slot: Slot) -> bool {
        self.book_wait(slot);
        let request = live(&mut self.requests, slot);
        match request.state {
            State::Waiting => {
                self.queue
                    .remove(request.tenant, request.is_new(), request.place());
            }
            State::Suspended => self.num_outside -= 1,
            State::Following | State::Running { .. } | State::Ended { .. } => return false,
        }
        self.num_waiting_tokens -= request.tokens.len();
        true
    }

    /// Requests without a row; the queue's cap counts them.
    pub fn num_waiting(&self) -> usize {
        self.queue.len() + self.num_outside + self.num_following
    }

    /// Looks over the running list at the begin of a step: notes how many are suspended, and gives the work of the decodes.
    pub(super) fn survey(&mut self) -> Work {
        let (mut decodes, mut num_idle) = (Work::default(), 0);
        for &slot in &self.running {
            let request = live(&mut self.requests, slot);
            match request.num_pending() {
                0 if request.is_idle() => num_idle += request.num_rows(),
                1 => decodes = decodes.and(Work::of(request.num_computed, 1)),
                _ => {}
            }
        }
        self.num_idle = num_idle;
        decodes
    }

    /// Rows that the head of the queue lacks.
    pub(super) fn missing_rows(&self, head: Slot) -> usize {
        let head = self.requests[head as usize].as_ref();
        let num_rows = head.map_or(0, Request::num_rows);
        num_rows.saturating_sub(self.rows.num_free())
    }

    /// Where in the running list the youngest suspended request is that no step names.
    pub(super) fn youngest_idle(&mut self) -> Option<usize> {
        if self.num_idle == 0 {
            return None;
        }
        let requests = &mut self.requests;
        self.running
            .iter()
            .rposition(|&slot| live(requests, slot).is_idle())
    }

    /// Takes row and blocks of a suspended request, and the rows of who follows it; gives how many these are.
    pub(super) fn unseat(&mut self, index: usize) -> usize {
        let slot = self.running[index];
        let num_rows = self.unlist(index);
        self.preempt(slot);
        self.num_idle -= num_rows;
        num_rows
    }

    /// Preempts suspended requests, as few as will do, so that the head of the queue can join; false (and nothing changed)
    /// if all of them are not enough.
    pub(super) fn win_room(&mut self, head: Slot, num_hits: usize, headroom: usize) -> bool {
        if self.num_idle == 0 {
            return false;
        }
        let missing = self.missing_rows(head);
        let requests = &self.requests;
        let request = |slot: Slot| {
            requests[slot as usize]
                .as_ref()
                .expect("invariant: a listed slot holds a request")
        };
        let head = request(head);
        let running = self.running.iter().rev().map(|&slot| request(slot));
        let suspended: Vec<_> = running.filter(|request| request.is_idle()).collect();
        let tables = suspended.iter().map(|request| &request.table);
        let needed = self
            .kv
            .num_releases(&head.table, &head.tokens, num_hits, headroom, tables);
        let Some(needed) = needed else { return false };
        let mut num_rows = 0;
        let gain = |request: &&Request| {
            let is_short = num_rows < missing;
            num_rows += request.num_rows();
            is_short
        };
        let for_rows = suspended.iter().copied().take_while(gain).count();
        for _ in 0..needed.max(for_rows) {
            let index = self.youngest_idle();
            self.unseat(index.expect("invariant: so many are suspended"));
        }
        true
    }
}
