//! Who is in the batch: rows change hands as the plan says, in turn, when the policy lets them, and nobody starves.

use chairlift_core::{plan::PlanView, policy::Policy};

use crate::{
    client::{Client, State},
    tally::Sight,
    world::{Checked, World, ensure},
};

/// The batch as it was before a plan.
pub(crate) struct Before {
    /// Who ran and still runs, in order of admission.
    running: Vec<usize>,
    has_preempted: bool,
}

impl World {
    /// Rows change hands only as the plan says: freed, then assigned.
    pub(crate) fn check_rows(&mut self, view: &PlanView<'_>) -> Checked<Before> {
        let config = &self.scenario.config;
        ensure!(
            view.input_ids.len() <= config.max_num_batched_tokens,
            "the step exceeds its budget"
        );
        ensure!(!view.rows.is_empty(), "the step is empty");
        let mut victims = 0;
        for &row in view.freed_rows {
            let owner = self.rows[row as usize].take();
            let Some(owner) = owner else {
                return Err(format!("row {row} is freed and was not used"));
            };
            let runs = self.clients[owner].state == State::Running;
            if runs {
                victims += 1;
                self.preempt(owner)?;
            }
        }
        let has_preempted = victims > 0;
        let before = Before {
            running: self.running.clone(),
            has_preempted,
        };
        let mut num_joining = 0;
        for &[row, slot, _, start, ..] in view.assigned {
            self.check_joining(
                row as usize,
                slot as usize,
                start as usize,
                &before,
                &mut num_joining,
            )?;
        }
        let mut seen = vec![false; self.rows.len()];
        for &row in view.rows {
            ensure!(
                !std::mem::replace(&mut seen[row as usize], true),
                "row {row} is twice in the step"
            );
        }
        Ok(before)
    }

    fn preempt(&mut self, index: usize) -> Checked {
        let label = self.clients[index].label;
        ensure!(
            self.oldest != Some(index),
            "the oldest running request #{label} is preempted"
        );
        ensure!(
            self.clients[index].in_flight == 0,
            "#{label} is preempted though a step in flight names it"
        );
        // Where every request grows by a token a step, whoever comes back has room for the next.
        let is_even =
            self.scenario.config.steps_in_flight == 1 && self.scenario.faults.accept_many == 0;
        let is_back = self.clients[index].rejoined + 1 == self.tally.steps();
        ensure!(
            !is_even || !is_back,
            "#{label} is preempted right after it came back"
        );
        self.running.retain(|&other| other != index);
        self.clients[index].roll_back();
        self.tally.saw(Sight::Preemptions);
        Ok(())
    }

    fn check_joining(
        &mut self,
        row: usize,
        slot: usize,
        start: usize,
        before: &Before,
        num_joining: &mut usize,
    ) -> Checked {
        let index = self.by_slot[slot];
        ensure!(index != usize::MAX, "slot {slot} joins and is nobody's");
        let label = self.clients[index].label;
        ensure!(
            self.rows[row].is_none(),
            "#{label} joins in row {row}, which is in use"
        );
        ensure!(
            self.clients[index].state == State::Waiting,
            "#{label} joins and does not wait"
        );
        ensure!(
            !before.has_preempted,
            "#{label} joins in a step that preempts"
        );
        if self.clients[index].joined {
            self.clients[index].rejoined = self.tally.steps();
        } else {
            self.check_turn(index, before, *num_joining)?;
            *num_joining += 1;
            self.count_prefix(index, start);
        }
        let client = &mut self.clients[index];
        ensure!(
            start.is_multiple_of(self.scenario.config.block_size),
            "#{label} joins at {start}, amid a block"
        );
        ensure!(
            start < client.num_tokens(),
            "#{label} joins at {start} and has nothing to compute"
        );
        ensure!(
            start == 0 || client.reads_cache,
            "#{label} does not read the cache and joins at {start}"
        );
        self.tally.add(Sight::CacheHits, u64::from(start > 0));
        client.join(start);
        self.rows[row] = Some(index);
        self.running.push(index);
        Ok(())
    }

    fn count_prefix(&mut self, index: usize, start: usize) {
        let (client, block_size) = (&self.clients[index], self.scenario.config.block_size);
        if client.reads_cache {
            self.num_prefix_queries += ((client.answer.num_prompt - 1) / block_size) as u64;
            self.num_prefix_hits += (start / block_size) as u64;
        }
    }

    /// New requests join in order of arrival, behind the preempted, when the policy lets them.
    fn check_turn(&mut self, index: usize, before: &Before, num_joining: usize) -> Checked {
        let label = self.clients[index].label;
        let waits = self
            .live
            .iter()
            .any(|&other| self.clients[other].is_preempted());
        ensure!(!waits, "#{label} joins before a preempted request");
        if num_joining == 0 {
            // A step in flight names rows that are not back, even if all who had them have ended.
            let gate = self.gate_opens(!before.running.is_empty() || !self.flights.is_empty());
            ensure!(
                gate.is_some_and(|time| time <= self.now),
                "#{label} joins though the policy's gate is closed"
            );
        }
        if let Policy::Static { batch_size, .. } | Policy::Dynamic { batch_size, .. } =
            self.scenario.config.policy
        {
            ensure!(num_joining < batch_size, "more than a batch joins");
        }
        let head = self.pop_fresh();
        ensure!(head == Some(index), "#{label} joins out of turn");
        Ok(())
    }

    /// Removes and gives the head of the queue of those who never joined.
    fn pop_fresh(&mut self) -> Option<usize> {
        self.skip_ended();
        self.fresh.pop_front()
    }

    fn skip_ended(&mut self) {
        while self
            .fresh
            .front()
            .is_some_and(|&index| !self.clients[index].is_live())
        {
            self.fresh.pop_front();
        }
    }

    /// When the policy lets somebody who waits now join, if nothing else happens.
    pub(crate) fn gate_opens(&mut self, batch_is_open: bool) -> Option<u64> {
        self.skip_ended();
        let &head = self.fresh.front()?;
        let (batch_size, patience) = match self.scenario.config.policy {
            Policy::Continuous => return Some(0),
            Policy::Dynamic { batch_size, window } => (batch_size, window),
            Policy::Static {
                batch_size,
                timeout,
            } => (batch_size, timeout),
        };
        let waiting = self
            .fresh
            .iter()
            .filter(|&&index| self.clients[index].is_live());
        let is_ready = waiting.count() >= batch_size || head < self.flushed_before;
        let due = self.clients[head].arrival.saturating_add(patience);
        (!batch_is_open).then_some(if is_ready { 0 } else { due })
    }

    /// Whoever ran before the step goes on: the oldest always, and every decode.
    pub(crate) fn check_fairness(&self, before: &Before, number: u64) -> Checked {
        if self.scenario.config.steps_in_flight > 1 {
            return Ok(());
        }
        for (place, &index) in before.running.iter().enumerate() {
            let client = &self.clients[index];
            let (label, pending) = (client.label, client.num_pending());
            if client.last_step != number && pending > 0 {
                ensure!(
                    place > 0,
                    "the oldest running request #{label} is not in the step"
                );
                ensure!(pending != 1, "#{label} decodes and is not in the step");
            }
        }
        Ok(())
    }

    /// If the head of the queue fits beside what the step computes, it is in the step.
    pub(crate) fn check_work_is_conserved(
        &mut self,
        before: &Before,
        num_tokens: usize,
    ) -> Checked {
        let Some(head) = self.head() else {
            return Ok(());
        };
        let config = &self.scenario.config;
        let load = self.scheduler.load();
        let is_full = num_tokens == config.max_num_batched_tokens
            || load.num_rows_held == config.max_num_seqs;
        if config.steps_in_flight > 1
            || config.policy != Policy::Continuous
            || before.has_preempted
            || is_full
        {
            return Ok(());
        }
        let columns = |tokens: usize| tokens.div_ceil(config.block_size);
        let unwritten = |client: &Client| {
            columns(client.num_tokens()).saturating_sub(columns(client.num_computed))
        };
        let promised: usize = self
            .running
            .iter()
            .map(|&index| unwritten(&self.clients[index]))
            .sum();
        let head = &self.clients[head];
        // Who was preempted comes back only if everyone who runs, itself included, could take one more token.
        let headroom = if head.is_preempted() {
            self.running.len() + usize::from(head.num_tokens().is_multiple_of(config.block_size))
        } else {
            0
        };
        let needed = (columns(head.num_tokens()) + headroom + promised) * config.kv_groups.len();
        let (label, free) = (head.label, load.num_free_blocks);
        ensure!(
            needed > free,
            "#{label} waits though a row is free and {needed} of {free} free blocks suffice"
        );
        Ok(())
    }

    /// The head of the queue: who was preempted, if it is one, then who came first.
    fn head(&mut self) -> Option<usize> {
        self.skip_ended();
        let mut preempted = self
            .live
            .iter()
            .filter(|&&index| self.clients[index].is_preempted());
        match (preempted.next(), preempted.next()) {
            (None, _) => self.fresh.front().copied(),
            (Some(&only), None) => Some(only),
            // Their order is not known from outside.
            (Some(_), Some(_)) => None,
        }
    }
}
