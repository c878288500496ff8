//! The scheduler core.
#![forbid(unsafe_code)]
pub mod text;
