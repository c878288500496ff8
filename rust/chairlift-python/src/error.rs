//! The core's errors as Python exceptions: one file for the whole border.

use chairlift_core::{Refusal, RefusalReason, StepError, Violation};
use pyo3::{PyErr, Python, create_exception, exceptions::PyException, prelude::*};

create_exception!(chairlift._core, CoreError, PyException);
create_exception!(chairlift._core, ConfigError, CoreError);
create_exception!(chairlift._core, Refused, CoreError);
create_exception!(chairlift._core, UnknownStep, CoreError);
create_exception!(chairlift._core, InvariantError, CoreError);
create_exception!(chairlift._core, RankError, CoreError);

pub(crate) fn config(error: &chairlift_core::ConfigError) -> PyErr {
    ConfigError::new_err(error.to_string())
}

pub(crate) fn step(error: StepError) -> PyErr {
    UnknownStep::new_err(error.to_string())
}

pub(crate) fn violation(error: Violation) -> PyErr {
    InvariantError::new_err(error.0)
}

/// What Python calls a reason.
pub(crate) fn refusal_name(reason: RefusalReason) -> &'static str {
    match reason {
        RefusalReason::BadParameter => "BAD_PARAMETER",
        RefusalReason::PromptTooLong => "PROMPT_TOO_LONG",
        RefusalReason::KvCapacity => "KV_CAPACITY",
        RefusalReason::QueueFull => "QUEUE_FULL",
    }
}

/// `Refused` with its attributes `reason`, `field` and `message`.
pub(crate) fn refused(py: Python<'_>, refusal: Refusal) -> PyErr {
    let reason = refusal_name(refusal.reason);
    let error = Refused::new_err(refusal.to_string());
    let value = error.value(py);
    let set = value
        .setattr("reason", reason)
        .and_then(|()| value.setattr("field", refusal.field))
        .and_then(|()| value.setattr("message", refusal.message));
    set.err().unwrap_or(error)
}
