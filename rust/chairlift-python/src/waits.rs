//! Why a request waits, as Python names it.

use chairlift_core::{
    WaitCause,
    scheduler::{self, RequestState},
};
use pyo3::prelude::*;

/// What a live request does and waits for.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct Waiting {
    state: &'static str,
    cause: Option<&'static str>,
    num_before: usize,
    num_computed_tokens: usize,
    num_tokens: usize,
}

impl From<scheduler::Explanation> for Waiting {
    fn from(explanation: scheduler::Explanation) -> Self {
        Self {
            state: match explanation.state {
                RequestState::Waiting => "waiting",
                RequestState::Running => "running",
                RequestState::Suspended => "suspended",
            },
            cause: explanation.cause.map(cause_name),
            num_before: explanation.num_before,
            num_computed_tokens: explanation.num_computed,
            num_tokens: explanation.num_tokens,
        }
    }
}

/// Waiting times by cause, without causes of no time.
pub(crate) fn times(times: &chairlift_core::WaitTimes) -> Vec<(&'static str, u64)> {
    let times = WaitCause::ALL.map(|cause| (cause_name(cause), times.get(cause)));
    times.into_iter().filter(|&(_, time)| time > 0).collect()
}

fn cause_name(cause: WaitCause) -> &'static str {
    match cause {
        WaitCause::Step => "step",
        WaitCause::Row => "row",
        WaitCause::Blocks => "blocks",
        WaitCause::Budget => "budget",
        WaitCause::Policy => "policy",
        WaitCause::Share => "share",
        WaitCause::Suspended => "suspended",
    }
}
