//! Why a request waits, as Python names it.

use chairlift_core::{
    Cause,
    scheduler::{self, Standing},
};
use pyo3::prelude::*;

/// How a live request stands.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct Waiting {
    state: &'static str,
    cause: Option<&'static str>,
    num_before: usize,
    num_computed_tokens: usize,
    num_tokens: usize,
}

impl From<scheduler::Waiting> for Waiting {
    fn from(waiting: scheduler::Waiting) -> Self {
        Self {
            state: match waiting.standing {
                Standing::Waiting => "waiting",
                Standing::Running => "running",
                Standing::Suspended => "suspended",
            },
            cause: waiting.cause.map(cause_name),
            num_before: waiting.num_before,
            num_computed_tokens: waiting.num_computed,
            num_tokens: waiting.num_tokens,
        }
    }
}

/// The times of an account, those that are not 0.
pub(crate) fn times(waits: &chairlift_core::Waits) -> Vec<(&'static str, u64)> {
    let times = Cause::ALL.map(|cause| (cause_name(cause), waits.get(cause)));
    times.into_iter().filter(|&(_, time)| time > 0).collect()
}

fn cause_name(cause: Cause) -> &'static str {
    match cause {
        Cause::Step => "step",
        Cause::Row => "row",
        Cause::Blocks => "blocks",
        Cause::Budget => "budget",
        Cause::Policy => "policy",
        Cause::Share => "share",
        Cause::Suspended => "suspended",
    }
}
