//! Why a folder cannot be used.

use std::{io, path::PathBuf};

use thiserror::Error;

/// A store cannot be opened.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process has the folder.
    #[error("{0} is used by another server")]
    Locked(PathBuf),
    /// The system refuses a file.
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// Fewer bytes than the smallest store takes.
    #[error("expected at least {min} bytes, got {got}")]
    TooSmall { min: u64, got: u64 },
}

impl StoreError {
    /// An error of the system about a path.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::Io { path, source }
    }
}
