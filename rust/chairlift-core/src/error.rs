//! What the core refuses, one type per question.

use thiserror::Error;

/// A setting of [`crate::Config`] is out of range.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{name}: {expected}, got {got}")]
pub struct ConfigError {
    pub name: &'static str,
    pub expected: String,
    pub got: u64,
}

/// Refuses a setting below `min`; `meaning` says where that comes from, unless it is empty.
pub(crate) fn check_min(
    name: &'static str,
    got: usize,
    min: usize,
    meaning: &str,
) -> Result<(), ConfigError> {
    if got >= min {
        return Ok(());
    }
    let expected = if meaning.is_empty() {
        format!("at least {min}")
    } else {
        format!("at least {min} ({meaning})")
    };
    Err(ConfigError {
        name,
        expected,
        got: got as u64,
    })
}

/// Refuses a setting above `max`.
pub(crate) fn check_max(name: &'static str, got: usize, max: usize) -> Result<(), ConfigError> {
    if got <= max {
        return Ok(());
    }
    Err(ConfigError {
        name,
        expected: format!("at most {max}"),
        got: got as u64,
    })
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    BadParameter,
    PromptTooLong,
    KvCapacity,
    QueueFull,
}

/// `Scheduler::add` does not take the request; nothing of it stays behind.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field}: {message}")]
pub struct Refusal {
    pub reason: RefusalReason,
    /// Path of the offending field, as in the proto's `Start`; empty when it is not a field's fault.
    pub field: &'static str,
    pub message: String,
}

/// The request has ended, or never was.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("request {0} is not live")]
pub struct UnknownRequest(pub u64);

/// The step cannot be completed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StepError {
    #[error("step {0} is not the oldest step in flight")]
    UnknownStep(u64),
    #[error("sampled {got} tokens, expected one for each of the {expected} sample slots")]
    WrongSamples { expected: usize, got: usize },
}

/// An invariant does not hold: a bug, never a user's fault.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Violation(pub String);

/// Returns a [`Violation`] with a formatted message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::error::Violation(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;
