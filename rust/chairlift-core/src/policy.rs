//! The admission policies. They decide one thing: *when a waiting request may first be admitted*.
//!
//! ```text
//! continuous  every step                                                                   (Orca, OSDI '22)
//! batched     no request runs, and a full batch waits, or the input is flushed, or the oldest has waited `patience`
//! ```
//!
//! Static batching is `Batched` with a long patience, dynamic batching (Triton) with a short one. Everything else (budget,
//! chunks, blocks, preemption) is the same scheduler.

use crate::{
    error::{ConfigError, check_max, check_min},
    ids::Nanos,
};

/// When a waiting request may first be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Continuous,
    /// A batch of `size` sequences is admitted when the last has ended; a smaller one after `patience`.
    Batched {
        size: usize,
        patience: Nanos,
    },
}

/// What a policy may look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Nanos,
    /// A request runs and is not suspended, or lost its row to preemption and will be back.
    pub(crate) batch_is_open: bool,
    pub(crate) num_waiting: usize,
    /// When the first of the waiting requests arrived.
    pub(crate) oldest: Nanos,
    /// One of them was waiting when the input was flushed.
    pub(crate) flushed: bool,
}

/// The policy's answer for this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Up to `limit` fresh requests may be admitted; a `whole_batch` takes its rows now even if the step's budget is spent.
    Open { limit: usize, whole_batch: bool },
    /// None may; at `wake_at` the answer changes by itself.
    Closed { wake_at: Option<Nanos> },
}

impl Policy {
    pub(crate) fn gate(self, moment: Moment) -> Gate {
        let Self::Batched { size, patience } = self else {
            return Gate::Open {
                limit: usize::MAX,
                whole_batch: false,
            };
        };
        if moment.batch_is_open || moment.num_waiting == 0 {
            return Gate::Closed { wake_at: None };
        }
        let due = moment.oldest.saturating_add(patience);
        if moment.num_waiting >= size || moment.flushed || moment.now >= due {
            Gate::Open {
                limit: size,
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
            Self::Batched { size, .. } => {
                check_min("batch_size", size, 1, "")?;
                check_max("batch_size", size, max_num_seqs)
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
    const BATCHED: Policy = Policy::Batched {
        size: 4,
        patience: 50,
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
        assert_eq!(BATCHED.gate(MOMENT), Gate::Closed { wake_at: Some(140) });
        let due = Moment { now: 140, ..MOMENT };
        let full = Moment {
            num_waiting: 4,
            ..MOMENT
        };
        let flushed = Moment {
            flushed: true,
            ..MOMENT
        };
        for moment in [due, full, flushed] {
            assert_eq!(BATCHED.gate(moment), OPEN);
        }
    }

    #[test]
    fn an_open_batch_admits_no_request() {
        let busy = Moment {
            batch_is_open: true,
            num_waiting: 9,
            now: 500,
            ..MOMENT
        };
        assert_eq!(BATCHED.gate(busy), Gate::Closed { wake_at: None });
    }

    #[test]
    fn a_patience_at_the_end_of_time_does_not_wrap() {
        let policy = Policy::Batched {
            size: 4,
            patience: Nanos::MAX,
        };
        assert_eq!(
            policy.gate(MOMENT),
            Gate::Closed {
                wake_at: Some(Nanos::MAX)
            }
        );
    }
}
