//! Changes of live requests, their abort included: carried out, and what they owe.

use chairlift_core::{
    RequestId, UnknownRequest,
    events::EndReason,
    scheduler::{Change, Schedule, Stopping},
};

use crate::{
    alteration::Alteration,
    client::State,
    random::mix,
    tally::Sight,
    workload::{Label, find_stops},
    world::{Checked, World, ensure},
};

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
                self.begin_to_wait(index);
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
        let num_prompt = self.clients[answers[0]].answer.num_prompt;
        let room = (config.max_context_len() - num_prompt).max(1);
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
            stop_regex: None,
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
