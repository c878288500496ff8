//! The three admission policies. They decide one thing: *when a waiting request may first join*.
//!
//! ```text
//! continuous  every step                                          (Orca, OSDI '22)
//! dynamic     nothing runs, and a full batch waits or the oldest has waited `window`   (Triton's dynamic batcher)
//! static      nothing runs, and a full batch waits, or the input is flushed, or the oldest has waited `timeout`
//! ```
//!
//! Everything else (budget, chunks, blocks, preemption) is the same scheduler.

use crate::{
    Nanos,
    config::{after, at_least, at_most},
    error::ConfigError,
};

/// When a waiting request may first join the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Continuous,
    Dynamic { batch_size: usize, window: Nanos },
    Static { batch_size: usize, timeout: Nanos },
}

/// What a policy may look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Nanos,
    /// A request runs and is not suspended, or lost its row to preemption and will be back.
    pub(crate) batch_is_open: bool,
    pub(crate) num_waiting: usize,
    /// When the first of those who wait arrived.
    pub(crate) oldest: Nanos,
    /// One of them was waiting when the input was flushed.
    pub(crate) flushed: bool,
}

/// The policy's answer for this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Up to `limit` new requests may join; a `whole_batch` takes its rows now even if the step's budget is spent.
    Open { limit: usize, whole_batch: bool },
    /// None may; at `wake_at` the answer changes by itself.
    Closed { wake_at: Option<Nanos> },
}

impl Policy {
    pub(crate) fn gate(self, moment: Moment) -> Gate {
        let (batch_size, patience) = match self {
            Self::Continuous => {
                return Gate::Open {
                    limit: usize::MAX,
                    whole_batch: false,
                };
            }
            Self::Dynamic { batch_size, window } => (batch_size, window),
            Self::Static {
                batch_size,
                timeout,
            } => (batch_size, timeout),
        };
        if moment.batch_is_open || moment.num_waiting == 0 {
            return Gate::Closed { wake_at: None };
        }
        let due = after(moment.oldest, patience);
        if moment.num_waiting >= batch_size || moment.flushed || moment.now >= due {
            Gate::Open {
                limit: batch_size,
                whole_batch: true,
            }
        } else {
            Gate::Closed { wake_at: Some(due) }
        }
    }

    /// Whether the row of a finished request stays empty until its whole batch has ended.
    pub(crate) fn holds_rows(self) -> bool {
        self != Self::Continuous
    }

    pub(crate) fn validate(self, max_num_seqs: usize) -> Result<(), ConfigError> {
        match self {
            Self::Continuous => Ok(()),
            Self::Dynamic { batch_size, .. } | Self::Static { batch_size, .. } => {
                at_least("batch_size", batch_size, 1, "1")?;
                at_most("batch_size", batch_size, max_num_seqs)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Moment = Moment {
        now: 100,
        batch_is_open: false,
        num_waiting: 2,
        oldest: 90,
        flushed: false,
    };
    const OPEN: Gate = Gate::Open {
        limit: 4,
        whole_batch: true,
    };

    #[test]
    fn continuous_is_always_open() {
        let busy = Moment {
            batch_is_open: true,
            ..MOMENT
        };
        assert_eq!(
            Policy::Continuous.gate(busy),
            Gate::Open {
                limit: usize::MAX,
                whole_batch: false
            }
        );
    }

    #[test]
    fn a_partial_batch_waits_for_its_time() {
        for policy in [
            Policy::Dynamic {
                batch_size: 4,
                window: 50,
            },
            Policy::Static {
                batch_size: 4,
                timeout: 50,
            },
        ] {
            assert_eq!(policy.gate(MOMENT), Gate::Closed { wake_at: Some(140) });
            assert_eq!(policy.gate(Moment { now: 140, ..MOMENT }), OPEN);
            assert_eq!(
                policy.gate(Moment {
                    num_waiting: 4,
                    ..MOMENT
                }),
                OPEN
            );
            assert_eq!(
                policy.gate(Moment {
                    flushed: true,
                    ..MOMENT
                }),
                OPEN
            );
        }
    }

    #[test]
    fn nobody_joins_an_open_batch() {
        let policy = Policy::Dynamic {
            batch_size: 4,
            window: 50,
        };
        let busy = Moment {
            batch_is_open: true,
            num_waiting: 9,
            now: 500,
            ..MOMENT
        };
        assert_eq!(policy.gate(busy), Gate::Closed { wake_at: None });
    }

    #[test]
    fn a_window_at_the_end_of_time_does_not_wrap() {
        let policy = Policy::Static {
            batch_size: 4,
            timeout: Nanos::MAX,
        };
        assert_eq!(
            policy.gate(MOMENT),
            Gate::Closed {
                wake_at: Some(Nanos::MAX)
            }
        );
    }
}
