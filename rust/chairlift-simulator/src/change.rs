//! Changes of live requests, their abort included: drawn, carried out, and what they owe.

use std::fmt;

use chairlift_core::{
    RequestId, UnknownRequest,
    events::EndReason,
    scheduler::{Change, Schedule, Stopping},
};

use crate::{
    client::{Client, State},
    random::{Random, mix},
    tally::Sight,
    workload::{Label, Stop, find_stops},
    world::{Checked, World, ensure},
};

/// One change of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Alteration {
    Stopping {
        max_tokens: usize,
        min_tokens: usize,
        stops: Vec<Stop>,
        include_stop: bool,
    },
    Schedule {
        priority: i32,
        /// From now on.
        queue_patience: Option<u64>,
        first_token_patience: Option<u64>,
        patience: Option<u64>,
    },
    Credit(u64),
    /// The same, and no more follows.
    LastCredit(u64),
    Pause(bool),
}

impl Alteration {
    /// Near what the request has produced, where it matters.
    pub(crate) fn draw(random: &mut Random, client: Option<&Client>, max_output: usize) -> Self {
        let num_output = client.map_or(0, |client| client.num_output);
        let is_suspended = client.is_some_and(Client::is_suspended);
        if client.is_some_and(Client::holds_text) && random.chance(768) {
            let at = num_output.saturating_sub(random.between(1, 2));
            return Self::Stopping {
                max_tokens: num_output + random.between(1, 8),
                min_tokens: 0,
                stops: vec![Stop::String(at, random.between(2, 9))],
                include_stop: random.chance(256),
            };
        }
        match random.below(if is_suspended { 12 } else { 8 }) {
            0 | 1 => {
                let max_tokens = match random.below(4) {
                    0 => usize::MAX,
                    1 => random.between(0, max_output),
                    _ => num_output + random.between(0, 3),
                };
                let mut stops = Vec::new();
                while stops.len() < 3 && random.chance(512) {
                    let at = num_output.saturating_sub(2) + random.below(8);
                    stops.push(Stop::draw(random, at));
                }
                Self::Stopping {
                    max_tokens,
                    min_tokens: random.pick(&[0, 0, num_output + 2]),
                    stops,
                    include_stop: random.chance(256),
                }
            }
            2 => {
                let mut patience = || {
                    let limited = random.chance(512);
                    limited.then(|| random.magnitude(1, 1 << 12) as u64)
                };
                let (queue_patience, first, patience) = (patience(), patience(), patience());
                Self::Schedule {
                    priority: draw_priority(random),
                    queue_patience,
                    first_token_patience: first,
                    patience,
                }
            }
            3 | 4 => Self::Pause(true),
            5 | 8 | 9 => Self::Pause(false),
            6 if random.chance(512) => Self::LastCredit(random.pick(&[0, 0, 1, 2, 5])),
            _ => Self::Credit(random.pick(&[0, 1, 1, 2, 5, u64::MAX])),
        }
    }
}

pub(crate) fn draw_priority(random: &mut Random) -> i32 {
    random.between(0, 20) as i32 - 10
}

impl fmt::Display for Alteration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopping {
                max_tokens,
                min_tokens,
                stops,
                include_stop,
            } => {
                write!(f, "max_tokens {max_tokens}, min_tokens {min_tokens}")?;
                write!(f, ", stops {stops:?}")?;
                f.write_str(if *include_stop { ", include_stop" } else { "" })
            }
            Self::Schedule {
                priority,
                queue_patience,
                first_token_patience,
                patience,
            } => write!(
                f,
                "priority {priority}, queue patience {queue_patience:?}, first token within \
                 {first_token_patience:?}, patience {patience:?}"
            ),
            Self::Credit(tokens) => write!(f, "credit {tokens}"),
            Self::LastCredit(tokens) => write!(f, "credit {tokens}, the last"),
            Self::Pause(true) => write!(f, "pause"),
            Self::Pause(false) => write!(f, "go on"),
        }
    }
}

impl World {
    /// Changes a request in any state; one that has ended or is unknown cannot be.
    pub(crate) fn change(&mut self, label: Label, alteration: &Alteration) -> Checked {
        let latest = self.tell_time();
        let live = self
            .find(label)
            .and_then(|index| self.answers(index).next());
        let Some(index) = live else {
            let ended = self.find(label).map(|index| self.clients[index].id);
            let id = ended.unwrap_or(RequestId(mix(u64::from(label))));
            let before = self.scheduler.load();
            let changed = self.scheduler.change(self.now, id, Change::default());
            ensure!(
                changed == Err(UnknownRequest(id.0)) && self.scheduler.load() == before,
                "a change of the unknown #{label} gives {changed:?}"
            );
            self.tally.saw(Sight::ChangeUnknown);
            return Ok(());
        };
        self.last_change = self.tally.steps();
        self.attempt.is_unsettled |= self.attempt.oldest.is_some();
        let answers: Vec<_> = self.answers(index).collect();
        let is_suspended = |world: &Self, index: &usize| world.clients[*index].is_suspended();
        let were: Vec<_> = answers
            .iter()
            .map(|index| is_suspended(self, index))
            .collect();
        let change = self.altered(&answers, alteration);
        for (&index, was_suspended) in answers.iter().zip(were) {
            let is_suspended = self.clients[index].is_suspended();
            self.clients[index].wait.suspend(latest, is_suspended);
            if was_suspended != is_suspended {
                let sight = match (is_suspended, self.clients[index].state) {
                    (true, State::Running) => Sight::SuspendedRunning,
                    (true, _) => Sight::SuspendedWaiting,
                    (false, State::Running) => Sight::ResumedRunning,
                    (false, _) => Sight::ResumedWaiting,
                };
                self.tally.saw(sight);
            }
            if was_suspended {
                self.lift(index);
            }
        }
        let id = self.clients[index].id;
        let changed = self.scheduler.change(self.now, id, change);
        ensure!(changed.is_ok(), "a change of the live #{label} is refused");
        Ok(())
    }

    /// The change as the scheduler takes it; the answers have it already.
    fn altered(&mut self, answers: &[usize], alteration: &Alteration) -> Change {
        let mut change = Change::default();
        match alteration {
            Alteration::Stopping { .. } => change.stopping = Some(self.restop(answers, alteration)),
            Alteration::Schedule { .. } => {
                for &index in answers {
                    change.schedule = Some(self.reschedule(index, alteration));
                }
                self.tally.saw(Sight::Rescheduled);
            }
            &Alteration::Credit(tokens) => {
                self.deal(answers[0], tokens);
                change.credit = tokens;
            }
            &Alteration::LastCredit(tokens) => {
                self.close_credit(answers, tokens);
                (change.credit, change.credit_is_final) = (tokens, true);
            }
            &Alteration::Pause(paused) => {
                for &index in answers {
                    self.clients[index].is_paused = paused;
                }
                change.paused = Some(paused);
            }
        }
        change
    }

    fn reschedule(&mut self, index: usize, alteration: &Alteration) -> Schedule {
        let &Alteration::Schedule {
            priority,
            queue_patience,
            first_token_patience,
            patience,
        } = alteration
        else {
            unreachable!("asked for by its kind")
        };
        let client = &mut self.clients[index];
        client.priority = priority;
        let arrival = client.arrival;
        let age = self.now.saturating_sub(arrival);
        let [queue_timeout, time_to_first_token, time_limit] =
            [queue_patience, first_token_patience, patience]
                .map(|time| time.map(|time| time + age));
        let after = |time: Option<u64>| time.map(|time| arrival.saturating_add(time));
        client.queue_deadline = after(queue_timeout);
        client.deadline = after(time_limit);
        client.aim(after(time_to_first_token), self.scheduler.costs());
        Schedule {
            priority,
            queue_timeout,
            time_to_first_token,
            time_limit,
        }
    }

    fn restop(&mut self, answers: &[usize], alteration: &Alteration) -> Stopping {
        let Alteration::Stopping {
            max_tokens,
            min_tokens,
            stops,
            include_stop,
        } = alteration
        else {
            unreachable!("asked for by its kind")
        };
        let config = &self.scenario.config;
        let room = config.max_context_len() - self.clients[answers[0]].answer.num_prompt;
        let limit = room.min(*max_tokens);
        for &index in answers {
            self.clients[index].answer.extend(limit);
        }
        let (stop_token_ids, stop) = find_stops(stops, &self.clients[answers[0]].answer);
        let new = Stopping {
            max_tokens: *max_tokens,
            min_tokens: *min_tokens,
            stop_token_ids,
            stop,
            include_stop: *include_stop,
        };
        self.tally.saw(Sight::Restopped);
        for &index in answers.iter().rev() {
            let client = &mut self.clients[index];
            let (num_output, text) = (client.num_output, client.text.len());
            client.answer.change(&new, limit, num_output, text);
            if limit <= num_output {
                self.tally.saw(Sight::EndedByChange);
                self.owe_end(index, &EndReason::Length);
                self.deal_unspent(index);
            }
        }
        new
    }

    pub(crate) fn abort(&mut self, label: Label, reason: &EndReason) -> Checked {
        self.tell_time();
        let Some(client) = self.find(label) else {
            self.tally.saw(Sight::AbortUnknown);
            let unknown = RequestId(mix(u64::from(label)));
            ensure!(
                !self.scheduler.abort(self.now, unknown, reason.clone()),
                "an unknown request is aborted"
            );
            return Ok(());
        };
        let answers: Vec<_> = self.answers(client).collect();
        let (id, is_live) = (self.clients[client].id, !answers.is_empty());
        let sight = self.abort_sight(answers.first().copied().unwrap_or(client));
        self.tally.saw(sight);
        for index in answers {
            self.owe_end(index, reason);
        }
        let before = self.scheduler.load();
        let aborted = self.scheduler.abort(self.now, id, reason.clone());
        ensure!(aborted == is_live, "abort of #{label} says {aborted}");
        let after = self.scheduler.load();
        ensure!(
            is_live || after == before,
            "the abort of an ended request changes something"
        );
        Ok(())
    }

    fn abort_sight(&mut self, client: usize) -> Sight {
        let client = &self.clients[client];
        if client.in_flight > 0 {
            self.tally.saw(Sight::AbortInFlight);
        }
        match client.state {
            State::Ended => Sight::AbortEnded,
            State::Waiting if client.joined => Sight::AbortPreempted,
            State::Waiting => Sight::AbortWaiting,
            State::Running
                if client.in_flight > 0 && client.num_output + 1 == client.answer.num_output =>
            {
                Sight::AbortLastStep
            }
            State::Running if client.num_sampled == 0 => Sight::AbortMidChunk,
            State::Running => Sight::AbortRunning,
        }
    }
}
