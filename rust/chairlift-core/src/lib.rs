//! The scheduler core.
#![forbid(unsafe_code)]
