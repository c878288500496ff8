//! Several answers to a prompt: whose they are, what they share, and how they end.

use chairlift_core::events::{End, EndReason, Failure};

use crate::{
    client::Due,
    tally::Sight,
    world::{Checked, World, ensure},
};

impl World {
    /// The answers of a request that have not ended and do not end with the event at hand; `index` is any of them.
    pub(crate) fn answers(&self, index: usize) -> impl DoubleEndedIterator<Item = usize> + '_ {
        let client = &self.clients[index];
        let first = index - client.index;
        let answers = first..first + client.num_sequences;
        answers.filter(|&answer| {
            let answer = &self.clients[answer];
            answer.is_live() && !answer.is_ending()
        })
    }

    /// Deals credit out to the answers of a request: evenly, the remainder to those that have least left.
    pub(crate) fn deal(&mut self, index: usize, credit: u64) {
        let left = |index: &usize| {
            let client = &self.clients[*index];
            client.credit_left(client.num_due())
        };
        let mut answers: Vec<_> = self.answers(index).collect();
        answers.sort_by_key(left);
        let num_sequences = answers.len() as u64;
        for (i, answer) in (0..).zip(answers) {
            let more = credit / num_sequences + u64::from(i < credit % num_sequences);
            let credit = &mut self.clients[answer].credit;
            *credit = credit.map(|credit| credit.saturating_add(more));
        }
    }

    /// What an answer that ends by itself leaves of its credit goes to the others.
    pub(crate) fn deal_unspent(&mut self, index: usize) {
        let client = &self.clients[index];
        if let Some(credit) = client.credit {
            let unspent = credit.saturating_sub(client.num_due() as u64);
            let others = self.answers(index).count();
            self.tally
                .add(Sight::Dealt, u64::from(unspent > 0 && others > 0));
            self.deal(index, unspent);
        }
    }

    /// Deals the last credit out: answers that have no token left to get end at once.
    pub(crate) fn close_credit(&mut self, answers: &[usize], credit: u64) {
        self.deal(answers[0], credit);
        for &index in answers.iter().rev() {
            let client = &mut self.clients[index];
            client.credit_is_final = true;
            if client.credit_left(client.num_output) > 0 {
                self.tally
                    .add(Sight::LastCredits, u64::from(client.credit.is_some()));
                continue;
            }
            let (sight, reason) = match client.num_output {
                0 => (Sight::NeverPaid, EndReason::Cancelled),
                _ => (Sight::EndedSpent, EndReason::Length),
            };
            self.tally.saw(sight);
            self.owe_end(index, &reason);
        }
    }

    /// Says that the event at hand ends an answer, whatever else it owes.
    pub(crate) fn owe_end(&mut self, client: usize, reason: &EndReason) {
        let num_tokens = self.clients[client].due.take().map(|due| due.num_tokens);
        let due = Due {
            num_tokens: num_tokens.unwrap_or(0),
            end: Some(reason.clone()),
        };
        self.owe(client, due);
    }

    /// Says that the event at hand ends all answers of a request by an error.
    pub(crate) fn owe_failure(&mut self, client: usize, failure: Failure) {
        let answers: Vec<_> = self.answers(client).collect();
        for index in answers {
            self.owe_end(index, &EndReason::Failed(failure));
        }
    }

    /// The last event of an answer; an error is that of all answers.
    pub(crate) fn end(&mut self, index: usize, end: &End) -> Checked {
        let End {
            reason,
            stats,
            last,
        } = end;
        let first = index - self.clients[index].index;
        let group = first..first + self.clients[index].num_sequences;
        if matches!(reason, EndReason::Failed(_)) {
            let live = group.clone().filter(|&other| self.clients[other].is_live());
            let live: Vec<_> = live.collect();
            for &other in &live {
                self.clients[other].end(reason)?;
            }
            self.check_failed_account(&live, stats)?;
            for other in live {
                self.forget(other, reason);
            }
        } else {
            self.clients[index].end(reason)?;
            self.check_account(index, stats)?;
            self.forget(index, reason);
        }
        let is_over = group.clone().all(|other| !self.clients[other].is_live());
        ensure!(
            is_over == *last,
            "the end of #{}.{} says that it is the last: {last}",
            self.clients[index].label,
            self.clients[index].index
        );
        Ok(())
    }
}
