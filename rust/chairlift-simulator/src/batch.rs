//! The batch: rows change owners as the plan says, in turn, when the policy lets them, and no request starves.

use std::collections::HashSet;

use chairlift_core::plan::PlanView;

use crate::{
    client::{Client, State},
    mirror::Found,
    row_usage::RowUsage,
    service::Newcomer,
    tally::Sight,
    world::{Checked, World, ensure},
};

/// The batch as it was before a plan.
pub(crate) struct Before {
    /// Requests that ran, may go on and were not preempted, in order of admission.
    pub(crate) running: Vec<usize>,
    /// Suspended requests with a row and no step in flight, in order of admission; and the preempted ones of them.
    pub(crate) suspended: Vec<usize>,
    preempted_idle: Vec<usize>,
    /// A request that may go on was preempted.
    pub(crate) has_preempted: bool,
    /// Requests that were preempted for one of a tenant below its share, as far as the world can tell.
    pub(crate) yielded: Vec<usize>,
    pub(crate) num_yielded: usize,
    /// A request begins again after a failed step.
    pub(crate) has_rolled_back: bool,
    /// Blocks that the preempted requests had, at most.
    pub(crate) num_released: usize,
    /// How many rows each tenant had before any was taken away.
    pub(crate) rows_held: RowUsage,
    /// How many rows each tenant had.
    pub(crate) row_usage: RowUsage,
    /// Requests that the step admits.
    pub(crate) newcomers: Vec<Newcomer>,
}

impl Before {
    /// The tenant has its share of the rows, or had it while what the plan takes away was there: a suspended request keeps
    /// its row until another is admitted to it, which may be the last of several.
    pub(crate) fn has_had_share(&self, now: &RowUsage, tenant: u8) -> bool {
        let num_lost = self.rows_held.num_used(tenant) - self.row_usage.num_used(tenant);
        now.has_share_beside(tenant, num_lost)
    }

    /// It was preempted while it was suspended.
    pub(crate) fn has_idle(&self, index: usize) -> bool {
        self.preempted_idle.contains(&index)
    }

    pub(crate) fn has_preempted_idle(&self) -> bool {
        !self.preempted_idle.is_empty()
    }
}

impl World {
    /// Notes which requests have lost their row to a call of `schedule`, before which so many preemptions were counted.
    ///
    /// A sibling that loses its row while its parent has one parts from it, and so does one that is counted apart from it.
    pub(crate) fn note_preempted(&mut self, num_before: u64) {
        let held = self.scheduler.running();
        let held: HashSet<_> = held.map(|(slot, _)| self.by_slot[slot as usize]).collect();
        let lost = self.running.iter().filter(|index| !held.contains(index));
        let known = &self.attempt.preempted;
        let lost = lost.copied().filter(|index| !known.contains(index));
        let lost: Vec<_> = lost.collect();
        let parent = |index: usize| index - self.clients[index].index;
        let siblings = lost.iter().copied();
        let siblings = siblings.filter(|&index| self.clients[index].waits_for_parent);
        let (beside, mut parted): (Vec<_>, Vec<_>) =
            siblings.partition(|&index| lost.contains(&parent(index)));
        let num_counted = (self.scheduler.load().num_preemptions - num_before) as usize;
        let num_apart = (num_counted + beside.len()).saturating_sub(lost.len());
        // The youngest yield first.
        parted.extend(beside.iter().rev().take(num_apart));
        self.attempt.preempted.extend(lost);
        for index in parted {
            // It computes its prompt itself.
            self.clients[index].waits_for_parent = false;
            self.tally.saw(Sight::Parted);
        }
    }

    /// The requests that have lost their row since the last plan, and have not ended since.
    fn preempted(&mut self) -> Vec<usize> {
        let mut preempted = std::mem::take(&mut self.attempt.preempted);
        preempted.retain(|&index| self.clients[index].state == State::Running);
        preempted
    }

    /// Rows of requests that no longer run are free, once no step in flight names them.
    fn free_rows(&mut self) {
        for row in &mut self.rows {
            let client = row.map(|index| &self.clients[index]);
            if client.is_some_and(|client| client.state != State::Running && client.in_flight == 0)
            {
                *row = None;
            }
        }
    }

    /// Rows change hands only as the plan says, and only rows that are free.
    pub(crate) fn check_rows(&mut self, view: &PlanView<'_>) -> Checked<Before> {
        let config = &self.scenario.config;
        ensure!(
            view.input_ids.len() <= config.max_num_batched_tokens,
            "the step exceeds its budget"
        );
        ensure!(!view.rows.is_empty(), "the step is empty");
        let is_idle = |index: &usize| self.clients[*index].is_idle();
        let suspended: Vec<_> = self.running.iter().copied().filter(is_idle).collect();
        let (mut victims, mut preempted_idle, mut siblings) = (0, Vec::new(), Vec::new());
        let rows_held = self.row_usage();
        let order = self.running.clone();
        let preempted = self.preempted();
        let lacks_none = |index: &usize| self.lacks_no_block(*index);
        let spared: Vec<_> = preempted.iter().copied().filter(lacks_none).collect();
        // In which order they went is not known: what there is room for together may be in host memory for certain.
        let held = preempted
            .iter()
            .map(|&index| self.num_held(&self.clients[index]));
        let num_released = held.sum::<usize>();
        let has_room =
            self.max_host_blocks() + num_released <= self.scenario.config.num_host_blocks;
        for &owner in &preempted {
            if self.clients[owner].waits_for_parent {
                self.clients[owner].preempt();
                self.running.retain(|&other| other != owner);
                siblings.push(owner);
                continue;
            }
            if suspended.contains(&owner) {
                preempted_idle.push(owner);
                self.tally.saw(Sight::IdlePreempted);
            } else {
                victims += 1;
            }
            self.preempt(owner, has_room)?;
        }
        self.free_rows();
        for &index in &siblings {
            let parent = &self.clients[index - self.clients[index].index];
            ensure!(
                parent.state == State::Waiting,
                "#{} loses the row of an answer that waits for its prompt",
                parent.label
            );
        }
        self.tally
            .add(Sight::GroupsPreempted, siblings.len() as u64);
        let mut before = Before {
            running: self.runnable().collect(),
            suspended,
            preempted_idle,
            has_preempted: victims > 0,
            yielded: Vec::new(),
            num_yielded: 0,
            has_rolled_back: self
                .runnable()
                .any(|index| self.clients[index].is_rolled_back),
            num_released,
            rows_held,
            row_usage: self.row_usage(),
            newcomers: Vec::new(),
        };
        before.yielded = self.yielded(&before, &preempted, victims);
        before.num_yielded = before.yielded.len();
        self.check_victims(&before, &order, &preempted)?;
        self.check_preempting(&before, view, &preempted, &spared)?;
        let mut num_joining = 0;
        let mut joined = Vec::new();
        for assigned in view.assigned {
            if !self.moves(assigned)? {
                joined.push(self.check_joining(assigned, &mut before, &mut num_joining)?);
            }
        }
        for index in joined {
            let waits = |other: &usize| self.clients[*other].state == State::Waiting;
            ensure!(
                !self.waiting_siblings(index).iter().any(waits),
                "#{} is admitted, and not all of its siblings have a row",
                self.clients[index].label
            );
        }
        let mut places = HashSet::new();
        for &[group, row, block_index, _] in view.block_updates {
            ensure!(
                places.insert((group, row, block_index)),
                "block index {block_index} of row {row} is set twice (KV group {group})"
            );
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

    fn preempt(&mut self, index: usize, has_room: bool) -> Checked {
        let label = self.clients[index].label;
        // Drafts may have spent its credit since.
        let is_suspended = self.clients[index].is_suspended();
        ensure!(
            self.attempt.oldest != Some(index) || self.attempt.is_unsettled || is_suspended,
            "the oldest running request #{label} is preempted"
        );
        ensure!(
            self.clients[index].in_flight == 0,
            "#{label} is preempted though a step in flight names it"
        );
        // Where every request grows by a token a step, a request that resumes has room for the next.
        let config = &self.scenario.config;
        let has_drafts = self.scenario.faults.draft > 0 || config.prompt_lookup;
        let is_even = config.steps_in_flight == 1 && !(has_drafts && config.max_step_drafts > 0);
        let resumed_at = self.clients[index].resumed_at;
        // Nor was a request changed meanwhile, which may need a block now.
        let is_back = resumed_at + 1 == self.tally.steps() && self.last_change < resumed_at;
        ensure!(
            !is_even || !is_back || is_suspended,
            "#{label} is preempted right after it came back"
        );
        self.keep(index, has_room);
        self.running.retain(|&other| other != index);
        self.clients[index].preempt();
        self.tally.saw(Sight::Preemptions);
        Ok(())
    }

    fn check_joining(
        &mut self,
        &[row, slot, answer, start, ..]: &[i32; 5],
        before: &mut Before,
        num_joining: &mut usize,
    ) -> Checked<usize> {
        let (row, slot, start) = (row as usize, slot as usize, start as usize);
        let index = self.by_slot[slot];
        ensure!(index != usize::MAX, "slot {slot} is admitted and is free");
        let label = self.clients[index].label;
        ensure!(
            self.rows[row].is_none(),
            "#{label} is admitted to row {row}, which is in use"
        );
        ensure!(
            self.clients[index].state == State::Waiting,
            "#{label} is admitted and does not wait"
        );
        ensure!(
            answer as usize == self.clients[index].index,
            "sequence {answer} of #{label} is admitted in the slot of another"
        );
        if self.clients[index].waits_for_parent {
            return self.check_sibling(index, row, start);
        }
        ensure!(
            !before.has_preempted
                || before.num_yielded > 0
                || self.attempt.is_repeated
                || self.attempt.is_unsettled,
            "#{label} is admitted in a step that preempts"
        );
        self.check_yielded(index, before)?;
        ensure!(
            !self.clients[index].is_suspended(),
            "#{label} is admitted though it is suspended"
        );
        self.check_start(index, start)?;
        before.newcomers.push(self.newcomer(index));
        if self.clients[index].joined {
            self.check_order(index, Client::is_preempted, before)?;
            ensure!(
                self.scenario.config.steps_in_flight > 1
                    || !before.suspended.is_empty()
                    || !self.takes_reserved_row(index),
                "#{label} comes back to a row that is reserved for tenants below their share"
            );
            self.clients[index].resumed_at = self.tally.steps();
        } else {
            self.check_turn(index, before, *num_joining)?;
            *num_joining += 1 + self.waiting_siblings(index).len();
            let client = &self.clients[index];
            let num_tokens = client.answer.num_prompt - start;
            self.service.admit(client.tenant, num_tokens);
            self.count_prefix(index, start);
            let num_blocks = start / self.scenario.config.block_size;
            self.found.push(Found {
                client: index,
                num_blocks,
            });
        }
        let client = &mut self.clients[index];
        ensure!(
            start < client.num_tokens(),
            "#{label} is admitted at {start} and has nothing to compute"
        );
        self.tally.add(Sight::CacheHits, u64::from(start > 0));
        client.join(start);
        self.rows[row] = Some(index);
        self.running.push(index);
        Ok(index)
    }

    /// An answer gets its row with the one that computes the prompt, whose last token it will compute again.
    fn check_sibling(&mut self, index: usize, row: usize, start: usize) -> Checked<usize> {
        let client = &self.clients[index];
        let (label, parent) = (client.label, &self.clients[index - client.index]);
        ensure!(
            parent.state == State::Running && start == client.answer.num_prompt - 1,
            "a sibling of #{label} is admitted at {start}, or without its parent"
        );
        let client = &mut self.clients[index];
        (client.state, client.joined) = (State::Running, true);
        self.rows[row] = Some(index);
        self.running.push(index);
        Ok(index)
    }

    fn count_prefix(&mut self, index: usize, start: usize) {
        let (client, block_size) = (&self.clients[index], self.scenario.config.block_size);
        if client.reads_cache {
            self.num_prefix_queries += ((client.answer.num_prompt - 1) / block_size) as u64;
            self.num_prefix_hits += (start / block_size) as u64;
        }
    }

    /// Requests that hold a row and may go on, in order of admission.
    pub(crate) fn runnable(&self) -> impl Iterator<Item = usize> + '_ {
        let running = self.running.iter().copied();
        running.filter(|&index| !self.clients[index].is_suspended())
    }

    /// Requests that ran before the step go on: the oldest always, and every decode.
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
                ensure!(
                    pending != 1 || client.is_rolled_back,
                    "#{label} decodes and is not in the step"
                );
            }
        }
        Ok(())
    }

    /// Suspended requests are preempted before others are, the youngest first, and not for nothing.
    pub(crate) fn check_idle_preempted(&self, before: &Before, view: &PlanView<'_>) -> Checked {
        if self.scenario.config.steps_in_flight > 1 {
            return Ok(());
        }
        let mut stays = before.suspended.iter();
        let stays = stays.rfind(|index| !before.preempted_idle.contains(index));
        let place = |index: &usize| before.suspended.iter().position(|other| other == index);
        let first_victim = before.preempted_idle.iter().filter_map(place).min();
        if let Some(&index) = stays {
            let label = self.clients[index].label;
            ensure!(
                !before.has_preempted || before.num_yielded > 0 && !self.suspended_would_do(before),
                "a request is preempted, and the suspended #{label} is not"
            );
            ensure!(
                first_victim.is_none() || place(&index) < first_victim,
                "#{label} keeps its row and came after a suspended request that does not"
            );
        }
        // Or what it gave was not enough, and others had to follow.
        let is_gain =
            !view.assigned.is_empty() || !view.block_updates.is_empty() || before.has_preempted;
        ensure!(
            first_victim.is_none() || is_gain,
            "a suspended request is preempted and no request gains"
        );
        Ok(())
    }
}
