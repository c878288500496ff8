//! The one error of this crate: an argument that a kernel cannot take.

use std::fmt::Display;

/// An argument has the wrong shape or a value out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{argument}: expected {expected}, got {got}")]
pub struct ArgumentError {
    /// Name of the argument, as in the binding.
    pub argument: &'static str,
    /// What it must be.
    pub expected: String,
    /// What it is.
    pub got: String,
}

impl ArgumentError {
    /// Describes an argument that is not as expected.
    pub fn new(argument: &'static str, expected: impl Display, got: impl Display) -> Self {
        Self {
            argument,
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }
}

/// Checks that a length or count is what the other arguments ask for.
///
/// # Errors
/// If it is another.
pub fn expect_equal(
    argument: &'static str,
    what: &str,
    expected: usize,
    got: usize,
) -> Result<(), ArgumentError> {
    if expected == got {
        return Ok(());
    }
    Err(ArgumentError::new(
        argument,
        format_args!("{what} {expected}"),
        got,
    ))
}

#[cfg(feature = "python")]
impl From<ArgumentError> for pyo3::PyErr {
    fn from(error: ArgumentError) -> Self {
        pyo3::exceptions::PyValueError::new_err(error.to_string())
    }
}
