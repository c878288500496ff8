//! The one error of this crate.

/// A constraint is no grammar, or too large a one; the message is the parser's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CompileError(pub String);
