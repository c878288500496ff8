//! What a replica is told, and what it needs to run.

use chairlift_core::{Config, Nanos};

use crate::{
    options::StepTime,
    outcomes::Outcomes,
    roles::{Message, Missing, Roles},
    work::Work,
};

/// What a replica is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Command {
    Add(u32),
    Cancel(u32),
    Flush,
    /// To a prefill replica: a prompt to compute.
    Prefill(Missing),
    /// To a prefill replica: a prompt that is computed for nothing.
    Abort(u32),
    /// To a decode replica: all blocks of a request before a block index are there.
    Received {
        index: u32,
        end: usize,
    },
    /// To a decode replica: no more blocks come.
    Over(u32),
    /// To a decode replica: a request waits for its blocks no longer.
    Late(u32),
}

/// What a replica needs to run, and where it writes what happens.
pub(crate) struct Context<'a> {
    pub(crate) config: &'a Config,
    pub(crate) work: &'a Work,
    pub(crate) step_time: &'a StepTime,
    pub(crate) roles: Option<&'a Roles>,
    pub(crate) outcomes: &'a mut Outcomes,
    /// Requests that ended, and when.
    pub(crate) ended: &'a mut Vec<(Nanos, u32)>,
    /// What is told to other replicas, and when.
    pub(crate) messages: &'a mut Vec<(Nanos, Message)>,
}
