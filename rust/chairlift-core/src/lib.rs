//! Continuous batching as a pure state machine: no Python, no tensor, no clock (time is an argument), no randomness,
//! no thread, no lock, no I/O.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`scheduler`] | which tokens each step computes |
//! | [`policy`] | when a waiting request may first join: continuous, dynamic, static |
//! | [`plan`], [`row_tables`] | the step as one flat buffer, and the runner's side of it |
//! | [`attention_work`] | the attention of a step, cut for a GPU |
//! | [`block_pool`], [`prefix_cache`] | KV memory: paging and sharing |
//! | [`text`] | tokens to text, and stop strings |
#![forbid(unsafe_code)]

pub mod attention_work;
pub mod block_pool;
mod block_table;
mod config;
pub mod cost_model;
mod deadlines;
mod error;
pub mod events;
mod index_list;
mod kv_cache;
pub mod plan;
pub mod policy;
pub mod prefix_cache;
mod queue;
mod request;
pub mod row_tables;
mod rows;
pub mod scheduler;
mod shares;
pub mod text;
mod waits;

/// Nanoseconds of one monotonic clock.
pub type Nanos = u64;

pub use config::{Config, KvGroup};
pub use error::{ConfigError, Refusal, RefusalReason, StepError, UnknownRequest, Violation};
pub use queue::{PATIENCE, PRIORITY_LEVEL};
pub use request::{Account, NewRequest, RequestId, Row, Slot};
pub use scheduler::{Load, Scheduler};
pub use shares::ABSENCE;
pub use waits::{Cause, Waits};
