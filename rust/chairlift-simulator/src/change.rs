//! Changes of live requests: drawn, carried out, and what they owe.

use std::fmt;

use chairlift_core::{
    RequestId, UnknownRequest,
    events::EndReason,
    scheduler::{Change, Schedule, Stopping},
};

use crate::{
    client::{Client, Due},
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
    Pause(bool),
}

impl Alteration {
    /// Near what the request has produced, where it matters.
    pub(crate) fn draw(random: &mut Random, client: Option<&Client>, max_output: usize) -> Self {
        let num_output = client.map_or(0, |client| client.num_output);
        let is_parked = client.is_some_and(Client::is_parked);
        if client.is_some_and(Client::holds_text) && random.chance(768) {
            let at = num_output.saturating_sub(random.between(1, 2));
            return Self::Stopping {
                max_tokens: num_output + random.between(1, 8),
                min_tokens: 0,
                stops: vec![Stop::String(at, random.between(2, 9))],
                include_stop: random.chance(256),
            };
        }
        match random.below(if is_parked { 12 } else { 8 }) {
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
            Self::Pause(true) => write!(f, "pause"),
            Self::Pause(false) => write!(f, "go on"),
        }
    }
}

impl World {
    /// Changes a request in any state; one that has ended or is unknown cannot be.
    pub(crate) fn change(&mut self, label: Label, alteration: &Alteration) -> Checked {
        let latest = self.tell_time();
        let live = self.find(label);
        let live = live.filter(|&index| self.clients[index].is_live());
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
        self.is_unsettled |= self.oldest.is_some();
        let was_parked = self.clients[index].is_parked();
        let change = self.altered(index, alteration);
        let is_parked = self.clients[index].is_parked();
        self.clients[index].wait.park(latest, is_parked);
        if was_parked != is_parked {
            self.tally
                .saw(match (is_parked, self.clients[index].state) {
                    (true, crate::client::State::Running) => Sight::ParkedInRow,
                    (true, _) => Sight::ParkedOutside,
                    (false, crate::client::State::Running) => Sight::UnparkedInRow,
                    (false, _) => Sight::UnparkedOutside,
                });
        }
        if was_parked {
            self.lift(index);
        }
        let id = self.clients[index].id;
        let changed = self.scheduler.change(self.now, id, change);
        ensure!(changed.is_ok(), "a change of the live #{label} is refused");
        Ok(())
    }

    /// The change as the scheduler takes it; the client has it already.
    fn altered(&mut self, index: usize, alteration: &Alteration) -> Change {
        let now = self.now;
        let mut change = Change::default();
        let client = &mut self.clients[index];
        match alteration {
            Alteration::Stopping { .. } => change.stopping = Some(self.restop(index, alteration)),
            &Alteration::Schedule {
                priority,
                queue_patience,
                first_token_patience,
                patience,
            } => {
                client.priority = priority;
                let arrival = client.arrival;
                let age = now.saturating_sub(arrival);
                let [queue_timeout, time_to_first_token, time_limit] =
                    [queue_patience, first_token_patience, patience]
                        .map(|time| time.map(|time| time + age));
                let after = |time: Option<u64>| time.map(|time| arrival.saturating_add(time));
                client.queue_deadline = after(queue_timeout);
                client.deadline = after(time_limit);
                client.aim(after(time_to_first_token), self.scheduler.costs());
                change.schedule = Some(Schedule {
                    priority,
                    queue_timeout,
                    time_to_first_token,
                    time_limit,
                });
                self.tally.saw(Sight::Rescheduled);
            }
            &Alteration::Credit(tokens) => {
                client.credit = client.credit.map(|credit| credit.saturating_add(tokens));
                change.credit = tokens;
            }
            &Alteration::Pause(paused) => {
                client.is_paused = paused;
                change.paused = Some(paused);
            }
        }
        change
    }

    fn restop(&mut self, index: usize, alteration: &Alteration) -> Stopping {
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
        let client = &mut self.clients[index];
        let room = config.max_context_len() - client.answer.num_prompt;
        let limit = room.min(*max_tokens);
        client.answer.extend(limit);
        let (stop_token_ids, stop) = find_stops(stops, &client.answer);
        let new = Stopping {
            max_tokens: *max_tokens,
            min_tokens: *min_tokens,
            stop_token_ids,
            stop,
            include_stop: *include_stop,
        };
        client
            .answer
            .change(&new, limit, client.num_output, client.text.len());
        self.tally.saw(Sight::Restopped);
        if limit <= client.num_output {
            self.tally.saw(Sight::EndedByChange);
            let end = Some(EndReason::Length);
            self.owe(index, Due { num_tokens: 0, end });
        }
        new
    }
}
