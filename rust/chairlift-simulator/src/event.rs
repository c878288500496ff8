//! What happens to the scheduler, as a value: a run is a list of these, and the same list is the same run.

use std::fmt;

use chairlift_core::events::EndReason;

use crate::{
    alteration::Alteration,
    workload::{Arrival, Label},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Add(Box<Arrival>),
    /// Of a request in any state, ended and unknown ones included.
    Abort(Label, EndReason),
    /// Of a request in any state, too.
    Change(Label, Alteration),
    /// Proposes drafts for one of the answers of a request, in any state, too.
    Draft(Label, usize, Vec<i32>),
    /// Plans a step and runs it on the device.
    Schedule,
    /// Reports the oldest step in flight.
    Complete(Outcome),
    /// Input ends: partial batches may go.
    Flush,
    /// The clock moves, forward or (where threads race for it) a little back.
    Clock(i64),
    /// Memory pressure: so many cached blocks are forgotten.
    Evict(usize),
    /// A request in the queue is held until the blocks that it lacks are loaded from a store.
    Load(Label),
}

/// How a step ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Each sample slot gives a token.
    Sampled,
    /// The rows of these requests were not finite.
    NotFinite(Vec<Label>),
    /// Because of these requests.
    Failed(Vec<Label>),
    /// The report does not fit the step: it must change nothing. The step stays in flight.
    Refused,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(arrival) => write!(f, "{arrival}"),
            Self::Abort(label, reason) => write!(f, "abort #{label}: {reason:?}"),
            Self::Change(label, alteration) => write!(f, "change #{label}: {alteration}"),
            Self::Draft(label, answer, tokens) => {
                write!(f, "draft for answer {answer} of #{label}: {tokens:?}")
            }
            Self::Schedule => write!(f, "schedule"),
            Self::Complete(outcome) => match outcome {
                Outcome::Sampled => write!(f, "complete"),
                Outcome::NotFinite(labels) => write!(f, "complete, not finite: {labels:?}"),
                Outcome::Failed(labels) => write!(f, "fail, failing: {labels:?}"),
                Outcome::Refused => write!(f, "reports that do not fit"),
            },
            Self::Flush => write!(f, "flush"),
            Self::Clock(by) => write!(f, "clock {by:+}"),
            Self::Load(label) => write!(f, "load #{label}"),
            Self::Evict(count) => write!(f, "evict {count}"),
        }
    }
}
