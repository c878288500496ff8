//! The invariants of the scheduler, executable.

use super::Scheduler;
use crate::{
    error::{Violation, ensure},
    request::{Request, Slot, State},
};

impl Scheduler {
    /// Everything has one owner and every count is true; O(blocks + requests).
    ///
    /// # Errors
    /// Describes the first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        let requests = || self.requests.iter().flatten();
        self.kv
            .check_invariants(requests().map(|request| &request.table))?;
        self.rows
            .check_invariants(requests().filter_map(Request::row))?;
        self.check_slots()?;
        self.check_queue()?;
        self.check_running()?;
        for request in requests() {
            self.check_request_state(request)?;
        }
        Ok(())
    }

    fn check_slots(&self) -> Result<(), Violation> {
        let mut free = vec![false; self.requests.len()];
        for &slot in &self.free_slots {
            ensure!(!free[slot as usize], "slot {slot} is free twice");
            free[slot as usize] = true;
        }
        for (slot, request) in self.requests.iter().enumerate() {
            ensure!(
                free[slot] != request.is_some(),
                "slot {slot} is free and used, or neither"
            );
        }
        Ok(())
    }

    fn check_queue(&self) -> Result<(), Violation> {
        let waiting = |slot: Slot| {
            let request = self.requests[slot as usize].as_ref();
            request.filter(|request| request.state == State::Waiting)
        };
        let (mut num_preempted, mut num_tokens) = (0, 0);
        for slot in self.queue.iter() {
            let Some(request) = waiting(slot) else {
                return Err(Violation(format!(
                    "slot {slot} is queued and does not wait"
                )));
            };
            num_preempted += usize::from(request.is_preempted());
            num_tokens += request.tokens.len();
        }
        let num_waiting = (0..self.requests.len())
            .filter_map(|slot| waiting(slot as Slot))
            .count();
        ensure!(
            num_waiting == self.queue.len(),
            "{num_waiting} requests wait, {} queued",
            self.queue.len()
        );
        ensure!(
            num_preempted == self.num_preempted,
            "{num_preempted} are preempted, {} counted",
            self.num_preempted
        );
        ensure!(
            num_tokens == self.num_waiting_tokens,
            "{num_tokens} tokens wait, {} counted",
            self.num_waiting_tokens
        );
        Ok(())
    }

    fn check_running(&self) -> Result<(), Violation> {
        let runs = |request: &&Request| matches!(request.state, State::Running { .. });
        let num_running = self.requests.iter().flatten().filter(runs).count();
        let listed = self
            .running
            .iter()
            .filter_map(|&slot| self.requests[slot as usize].as_ref());
        ensure!(
            listed.filter(runs).count() == num_running && self.running.len() == num_running,
            "{num_running} requests run, {} are listed",
            self.running.len()
        );
        Ok(())
    }

    fn check_request_state(&self, request: &Request) -> Result<(), Violation> {
        let id = request.id.0;
        let named = self.in_flight.iter().flat_map(|step| &step.items);
        let named = named.filter(|item| {
            self.requests[item.slot as usize]
                .as_ref()
                .is_some_and(|other| other.id == request.id)
        });
        let (num_steps, num_samples) = named.fold((0, 0), |(steps, samples), item| {
            (steps + 1, samples + usize::from(item.samples))
        });
        ensure!(
            num_steps == request.in_flight,
            "request {id} counts its steps wrong"
        );
        ensure!(
            num_samples == request.num_unknown,
            "request {id} waits for {} tokens, {num_samples} are sampled",
            request.num_unknown
        );
        match request.state {
            State::Waiting => ensure!(
                request.table.num_columns() == 0 && request.table.promised() == 0,
                "request {id} waits and owns blocks"
            ),
            State::Running { .. } => ensure!(
                request.num_computed + usize::from(request.in_flight == 0) <= request.num_tokens()
                    && request.num_tokens() <= request.max_num_tokens,
                "request {id} runs and has nothing to compute"
            ),
            State::Ended { .. } => {
                ensure!(
                    request.in_flight > 0,
                    "request {id} has ended and is still here"
                );
            }
        }
        let block_size = self.config.block_size;
        let columns = request.table.num_columns();
        ensure!(
            columns * block_size >= request.num_computed,
            "request {id} has too few blocks"
        );
        // Only full columns are shared: whoever writes a block is its only owner.
        for column in request.num_computed / block_size..columns {
            for group in 0..self.kv.num_groups() {
                let owners = self
                    .kv
                    .pool
                    .num_references(request.table.block(group, column));
                ensure!(
                    owners == 1,
                    "request {id} writes to a block with {owners} owners"
                );
            }
        }
        Ok(())
    }
}
