//! Replicas that are lost, and come back.

use chairlift_core::Nanos;

use super::{Fleet, MAX_SENT, State};
use crate::{
    clock::Event,
    outcomes::{NEVER, Unanswered},
};

impl Fleet {
    pub(super) fn draw_loss(&mut self, replica: u16) {
        if let Some(failures) = self.options.failures {
            let hours = -self.random.uniform().ln() / failures.per_hour;
            let time = self.now.saturating_add((hours * 3600e9) as Nanos);
            self.losses[replica as usize] = time;
            self.clock.at(time, Event::Lost { replica });
        }
    }

    pub(super) fn lose(&mut self, replica: u16) {
        // A replica that was drained and started again meanwhile has another loss.
        let is_there = matches!(self.states[replica as usize], State::Up | State::Draining)
            && self.losses[replica as usize] == self.now;
        let Some(failures) = self.options.failures.filter(|_| is_there) else {
            return;
        };
        self.outcomes.num_losses += 1;
        let requests = self.replicas[replica as usize].lose(self.now, &mut self.outcomes);
        self.states[replica as usize] = State::Lost(requests);
        self.note_due(replica);
        let detected = self.now + failures.detection.min(failures.restart);
        self.clock.at(detected, Event::Detected { replica });
        let joined = self.now + failures.restart;
        self.clock.at(joined, Event::Joined { replica });
    }

    /// The requests of a lost replica that had not started are sent again, once; the others have no answer.
    pub(super) fn detect(&mut self, replica: u16) {
        for router in &mut self.routers {
            router.leave(replica);
        }
        let state = &mut self.states[replica as usize];
        let State::Lost(requests) = std::mem::replace(state, State::Lost(Vec::new())) else {
            return;
        };
        for &index in &requests {
            if let Some(ticket) = self.tickets[index as usize].take() {
                self.router(index).end(ticket);
            }
        }
        for index in requests {
            let progress = &self.outcomes.progress[index as usize];
            if progress.first_token == NEVER && progress.num_sent < MAX_SENT {
                self.outcomes.num_resent += 1;
                self.send(index);
            } else {
                self.outcomes.unanswered.push((index, Unanswered::Lost));
                self.num_left -= 1;
            }
        }
    }

    pub(super) fn join(&mut self, replica: u16) {
        self.states[replica as usize] = State::Up;
        for router in &mut self.routers {
            router.join(replica);
        }
        self.draw_loss(replica);
        for index in std::mem::take(&mut self.unrouted) {
            self.send(index);
        }
    }
}
