//! Whether the scheduler says truly why somebody waits.

use chairlift_core::{
    Cause, RequestId, RequestStats,
    policy::Policy,
    scheduler::{Standing, Waiting},
};

use crate::{
    client::{Client, State},
    random::mix,
    spare_rows::num_spare_rows,
    tally::Sight,
    world::{Checked, World, ensure},
};

/// What a client's wait for its first step is made of, by the world's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait {
    arrival: u64,
    start: Option<u64>,
    suspended_since: Option<u64>,
    suspended: u64,
}

impl Wait {
    pub(crate) fn new(arrival: u64, is_suspended: bool) -> Self {
        Self {
            arrival,
            suspended_since: is_suspended.then_some(arrival),
            ..Self::default()
        }
    }

    /// It may go on or not from now on.
    pub(crate) fn suspend(&mut self, now: u64, is_suspended: bool) {
        if self.start.is_some() {
            return;
        }
        self.suspended += self.suspended_since.take().map_or(0, |since| now - since);
        self.suspended_since = is_suspended.then_some(now);
    }

    /// Its first tokens are computed.
    pub(crate) fn start(&mut self, now: u64) {
        self.start.get_or_insert(now);
    }
}

impl World {
    /// The scheduler is told the time; to it time never goes backwards.
    pub(crate) fn tell_time(&mut self) -> u64 {
        self.latest = self.latest.max(self.now);
        self.latest
    }

    /// So many rows are taken, or kept empty or for others, that somebody's answers do not find one each, when `schedule` has
    /// decided who joins.
    pub(crate) fn note_rows(&mut self) {
        let waiting = self.live.iter().copied();
        let waiting = waiting.filter(|&index| self.clients[index].state == State::Waiting);
        let most = waiting.map(|index| 1 + self.following(index).len()).max();
        let num_rows = self.scenario.config.max_num_seqs;
        let num_kept = if self.has_tenants() {
            num_spare_rows(num_rows)
        } else {
            0
        };
        let num_held = self.scheduler.load().num_rows_held + num_kept;
        self.rows_are_taken = num_held + most.unwrap_or(1) > num_rows;
    }

    /// Everybody who is there is told how it stands, and nobody else.
    pub(crate) fn check_standings(&mut self) -> Checked {
        let unknown = RequestId(mix(self.clients.len() as u64));
        ensure!(
            self.scheduler.explain(unknown).is_none(),
            "an unknown request stands somewhere"
        );
        let is_over = |index: &usize| {
            let client = &self.clients[*index];
            !client.is_live() && self.answers(*index).next().is_none()
        };
        let ended = (0..self.clients.len()).rev().find(is_over);
        let ended = ended.map(|index| &self.clients[index]);
        ensure!(
            ended.is_none_or(|ended| self.scheduler.explain(ended.id).is_none()),
            "a request that has ended stands somewhere"
        );
        for &index in &self.live {
            let client = &self.clients[index];
            if self.spokesman(index) != Some(index) {
                continue;
            }
            let label = client.label;
            let waiting = self.scheduler.explain(client.id);
            let waiting = waiting.ok_or_else(|| format!("#{label} lives and stands nowhere"))?;
            self.check_cause(client, &waiting)?;
            if let Some(cause) = waiting.cause {
                self.tally.saw(sight(cause));
            }
            // What a step planned ahead has preempted the world learns later.
            if self.scenario.config.steps_in_flight == 1 {
                self.check_standing(index, &waiting)?;
            }
        }
        Ok(())
    }

    /// The answer that a request is told of: one without a row if there is one. Which these are the world learns later
    /// where steps are planned ahead.
    fn spokesman(&self, index: usize) -> Option<usize> {
        if self.clients[index].num_answers > 1 && self.scenario.config.steps_in_flight > 1 {
            return None;
        }
        let leads = self
            .answers(index)
            .filter(|&index| !self.clients[index].follows);
        leads.min_by_key(|&index| (self.clients[index].state == State::Running, index))
    }

    fn check_cause(&self, client: &Client, waiting: &Waiting) -> Checked {
        let label = client.label;
        let Some(cause) = waiting.cause else {
            let runs = waiting.standing == Standing::Running;
            ensure!(runs, "#{label} waits for nothing");
            return Ok(());
        };
        let is_possible = match cause {
            Cause::Suspended => waiting.standing == Standing::Suspended,
            _ if waiting.standing != Standing::Waiting => false,
            Cause::Policy => self.scenario.config.policy != Policy::Continuous,
            Cause::Row => self.rows_are_taken,
            Cause::Share => self.has_tenants() && !client.joined,
            Cause::Step | Cause::Blocks | Cause::Budget => true,
        };
        ensure!(
            is_possible,
            "#{label} ({:?}) is told that it waits for {cause:?}",
            waiting.standing
        );
        Ok(())
    }

    fn check_standing(&self, index: usize, waiting: &Waiting) -> Checked {
        let client = &self.clients[index];
        let label = client.label;
        let standing = match client.state {
            _ if client.is_suspended() => Standing::Suspended,
            State::Running => Standing::Running,
            State::Waiting | State::Ended => Standing::Waiting,
        };
        let counts = (waiting.num_computed, waiting.num_tokens);
        let num_computed = match client.state {
            State::Running => client.num_computed,
            State::Waiting | State::Ended => 0,
        };
        let expected = (num_computed, client.answer.num_prompt + client.num_output);
        ensure!(
            waiting.standing == standing && counts == expected,
            "#{label} is told {:?} with (computed, all) tokens {counts:?}, expected {standing:?} with {expected:?}",
            waiting.standing
        );
        if client.is_fresh() {
            return self.check_position(index, waiting.num_before, self.live.len());
        }
        let before = |other: &Client| other.is_preempted() && other.rank() < client.rank();
        let num_before = if client.is_preempted() {
            let live = self.live.iter().map(|&index| &self.clients[index]);
            live.filter(|other| before(other)).count()
        } else {
            waiting.num_before
        };
        ensure!(
            waiting.num_before == num_before,
            "#{label} comes back after {num_before} others, is told {}",
            waiting.num_before
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
        // Whoever waits for another has waited as that one did.
        let leader = self.live.iter().map(|&index| &self.clients[index]);
        let mut leader = leader.filter(|other| other.id == client.id && other.index == 0);
        let leader = leader.next().filter(|_| client.follows && !client.started);
        let wait = &leader.unwrap_or(client).wait;
        let (label, waits) = (client.label, &stats.waits);
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
            waits.get(Cause::Suspended) == suspended,
            "#{label} was suspended for {suspended} ns, is billed {}",
            waits.get(Cause::Suspended)
        );
        let is_gated = self.scenario.config.policy != Policy::Continuous;
        ensure!(
            is_gated || waits.get(Cause::Policy) == 0,
            "#{label} waited at a gate that is always open"
        );
        ensure!(
            self.has_tenants() || waits.get(Cause::Share) == 0,
            "#{label} waited for the only tenant's turn"
        );
        Ok(())
    }
}

fn sight(cause: Cause) -> Sight {
    match cause {
        Cause::Step => Sight::ForStep,
        Cause::Row => Sight::ForRow,
        Cause::Blocks => Sight::ForBlocks,
        Cause::Budget => Sight::ForBudget,
        Cause::Policy => Sight::ForPolicy,
        Cause::Share => Sight::ForShare,
        Cause::Suspended => Sight::ForParked,
    }
}
