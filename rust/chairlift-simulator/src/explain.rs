//! Whether the scheduler says truly why a request waits.

use chairlift_core::{
    RequestId, RequestStats, WaitCause,
    policy::Policy,
    scheduler::{Explanation, RequestState},
};

use crate::{
    client::{Client, State},
    random::mix,
    row_usage::num_reserved_rows,
    tally::Sight,
    world::{Checked, World, ensure},
};

impl World {
    /// The scheduler is told the time; to it time never goes backwards.
    pub(crate) fn tell_time(&mut self) -> u64 {
        self.latest = self.latest.max(self.now);
        self.latest
    }

    /// So many rows are taken, or kept empty or reserved, that the sequences of a waiting request do not find one each, when
    /// `schedule` has admitted requests.
    pub(crate) fn note_rows(&mut self) {
        let waiting = self.live.iter().copied();
        let waiting = waiting.filter(|&index| self.clients[index].state == State::Waiting);
        let max_rows = waiting
            .map(|index| 1 + self.waiting_siblings(index).len())
            .max();
        let num_rows = self.scenario.config.max_num_seqs;
        let num_kept = if self.has_tenants() {
            num_reserved_rows(num_rows)
        } else {
            0
        };
        let num_held = self.scheduler.load().num_rows_held + num_kept;
        self.rows_are_taken = num_held + max_rows.unwrap_or(1) > num_rows;
    }

    /// Every live request is explained, and no other.
    pub(crate) fn check_states(&mut self) -> Checked {
        let unknown = RequestId(mix(self.clients.len() as u64));
        ensure!(
            self.scheduler.explain(unknown).is_none(),
            "an unknown request is explained"
        );
        let is_over = |index: &usize| {
            let client = &self.clients[*index];
            !client.is_live() && self.answers(*index).next().is_none()
        };
        let ended = (0..self.clients.len()).rev().find(is_over);
        let ended = ended.map(|index| &self.clients[index]);
        ensure!(
            ended.is_none_or(|ended| self.scheduler.explain(ended.id).is_none()),
            "a request that has ended is explained"
        );
        let (mut fresh, mut preempted) = (Vec::new(), Vec::new());
        for &index in &self.live {
            let client = &self.clients[index];
            if self.spokesman(index) != Some(index) {
                continue;
            }
            let label = client.label;
            let waiting = self.scheduler.explain(client.id);
            let waiting = waiting.ok_or_else(|| format!("#{label} lives and is not explained"))?;
            self.check_cause(client, &waiting)?;
            if let Some(cause) = waiting.cause {
                self.tally.saw(sight(cause));
            }
            // What a step planned ahead has preempted the world learns later.
            if self.scenario.config.steps_in_flight == 1 {
                self.check_state(index, &waiting)?;
            }
            if client.is_fresh() {
                fresh.push((waiting.num_before, index));
            } else if client.is_preempted() {
                preempted.push((waiting.num_before, index));
            }
        }
        if self.scenario.config.steps_in_flight > 1 {
            return Ok(());
        }
        let live = self.live.iter().map(|&index| &self.clients[index]);
        let num_preempted = live.filter(|client| client.is_preempted()).count();
        self.check_places(preempted, 0..num_preempted)?;
        let tenant = fresh.first().map(|&(_, index)| self.clients[index].tenant);
        let mut others = fresh.iter().map(|&(_, index)| self.clients[index].tenant);
        // Several tenants are told as if they took turns.
        if others.any(|other| Some(other) != tenant) {
            return Ok(());
        }
        let places = num_preempted..num_preempted + fresh.len();
        self.check_places(fresh, places)
    }

    /// The answer that a request is told of: one without a row if there is one. Which these are the world learns later
    /// where steps are planned ahead.
    fn spokesman(&self, index: usize) -> Option<usize> {
        if self.clients[index].num_sequences > 1 && self.scenario.config.steps_in_flight > 1 {
            return None;
        }
        let leads = self
            .answers(index)
            .filter(|&index| !self.clients[index].waits_for_parent);
        leads.min_by_key(|&index| (self.clients[index].state == State::Running, index))
    }

    fn check_cause(&self, client: &Client, waiting: &Explanation) -> Checked {
        let label = client.label;
        let Some(cause) = waiting.cause else {
            let runs = waiting.state == RequestState::Running;
            ensure!(runs, "#{label} waits for nothing");
            return Ok(());
        };
        let is_possible = match cause {
            WaitCause::Suspended => waiting.state == RequestState::Suspended,
            _ if waiting.state != RequestState::Waiting => false,
            WaitCause::Policy => self.scenario.config.policy != Policy::Continuous,
            WaitCause::Row => self.rows_are_taken,
            WaitCause::Share => self.has_tenants() && !client.joined,
            WaitCause::Step | WaitCause::Blocks | WaitCause::Budget => true,
        };
        ensure!(
            is_possible,
            "#{label} ({:?}) is told that it waits for {cause:?}",
            waiting.state
        );
        Ok(())
    }

    fn check_state(&self, index: usize, waiting: &Explanation) -> Checked {
        let client = &self.clients[index];
        let label = client.label;
        let state = match client.state {
            _ if client.is_suspended() => RequestState::Suspended,
            State::Running => RequestState::Running,
            State::Waiting | State::Ended => RequestState::Waiting,
        };
        let counts = (waiting.num_computed, waiting.num_tokens);
        let num_computed = match client.state {
            State::Running => client.num_computed,
            State::Waiting | State::Ended => 0,
        };
        let expected = (num_computed, client.answer.num_prompt + client.num_output);
        ensure!(
            waiting.state == state && counts == expected,
            "#{label} is told {:?} with (computed, all) tokens {counts:?}, expected {state:?} with {expected:?}",
            waiting.state
        );
        Ok(())
    }

    fn has_tenants(&self) -> bool {
        let first = self.clients.first().map(|client| client.tenant);
        let mut clients = self.clients.iter();
        clients.any(|client| Some(client.tenant) != first)
    }

    /// The causes of a wait add up to it, and the times that the world can tell are right.
    pub(crate) fn check_waits(&self, client: &Client, stats: &RequestStats) -> Checked {
        // A sibling that waits for its parent has waited as the parent did.
        let parent = self.live.iter().map(|&index| &self.clients[index]);
        let mut parent = parent.filter(|other| other.id == client.id && other.index == 0);
        let parent = parent
            .next()
            .filter(|_| client.waits_for_parent && !client.started);
        let wait = &parent.unwrap_or(client).wait;
        let (label, waits) = (client.label, &stats.wait_times);
        let end = wait.start.unwrap_or(self.latest);
        let (total, expected) = (waits.total(), end - wait.arrival);
        ensure!(
            total == expected,
            "#{label} waited for {expected} ns, the causes add up to {total}"
        );
        let suspended = wait.suspended
            + match (wait.suspended_since, wait.start) {
                (Some(since), None) => self.latest - since,
                _ => 0,
            };
        ensure!(
            waits.get(WaitCause::Suspended) == suspended,
            "#{label} was suspended for {suspended} ns, is billed {}",
            waits.get(WaitCause::Suspended)
        );
        let is_gated = self.scenario.config.policy != Policy::Continuous;
        ensure!(
            is_gated || waits.get(WaitCause::Policy) == 0,
            "#{label} waited at a gate that is always open"
        );
        ensure!(
            self.has_tenants() || waits.get(WaitCause::Share) == 0,
            "#{label} waited for the only tenant's turn"
        );
        Ok(())
    }
}

fn sight(cause: WaitCause) -> Sight {
    match cause {
        WaitCause::Step => Sight::ForStep,
        WaitCause::Row => Sight::ForRow,
        WaitCause::Blocks => Sight::ForBlocks,
        WaitCause::Budget => Sight::ForBudget,
        WaitCause::Policy => Sight::ForPolicy,
        WaitCause::Share => Sight::ForShare,
        WaitCause::Suspended => Sight::ForSuspended,
    }
}
