//! Continuous batching as a pure state machine: no Python, no tensor, no clock (time is an argument), no randomness,
//! no thread, no lock, no I/O.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`scheduler`] | which tokens each step computes |
//! | [`policy`] | when a waiting request may first be admitted: continuous or batched |
//! | [`plan`], [`row_tables`] | the step as one flat buffer, and the runner's side of it |
//! | `queue` | the order of admission, fair shares of tenants, deadlines, and where waiting time goes |
//! | `kv_cache` | KV memory: paging, sharing and swapping |
//! | `speculation` | drafts of the next tokens: which are likely, and how many pay |
//!
//! Modules import one way: `ids` and `error` nothing of the core; the scheduler all others, and none of them it.
#![forbid(unsafe_code)]

mod config;
pub mod cost_model;
mod error;
pub mod events;
mod ids;
mod kv_cache;
mod new_request;
pub mod plan;
pub mod policy;
mod prompt_output;
mod queue;
mod request;
pub mod row_tables;
mod rows;
pub mod scheduler;
mod speculation;

pub use config::{Config, KvGroup};
pub use error::{ConfigError, Refusal, RefusalReason, StepError, UnknownRequest, Violation};
pub use events::RequestStats;
pub use ids::{Nanos, RequestId, Row, Slot};
pub use kv_cache::{
    Adapter, BlockEvent, BlockEventKind, BlockEvents, BlockUse, CellUse, MAX_CELLS, MissingBlocks,
    Namespace, StateUse, Stored, StoredName,
};
pub use new_request::NewRequest;
pub use prompt_output::PromptOptions;
pub use queue::{ABSENCE, PATIENCE, PRIORITY_LEVEL, WaitCause, WaitTimes};
pub use scheduler::{Load, Scheduler};
