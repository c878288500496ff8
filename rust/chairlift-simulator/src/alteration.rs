//! One change of a live request as a value: easy to draw, to print and to shrink.

use std::fmt;

use crate::{
    client::Client,
    random::Random,
    workload::{Stop, draw_priority},
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
