//! From the events of a step to the messages of each stream, bounded however slowly a stream is read.
//!
//! ```text
//!  events of a step        tracks, one per request           streams, one per call
//!  #7 "a" ─────────────▶   #7: "a" + what waits already ──▶  A: [accepted #7] [tokens #7] [tokens #8]  ──▶ message
//!  #8 "b" ─────────────▶   #8: "b" ───────────────────────▶
//!  #9 "c" ─────────────▶   #9: "c" ───────────────────────▶  B: [tokens #9] ──▶ message
//! ```
//!
//! Tokens of an answer that wait to be sent become one event. All that waits for a stream becomes one message, in the
//! encoding of `chairlift.v1.GenerateResponse`: there is no object per token on the way.
//!
//! A request that outlives the loss of its stream has a log of what was sent for it. It moves to another stream with
//! what waits for it, and the events that its client has not got are sent again from the log.
#![forbid(unsafe_code)]

mod histogram;
mod log;
mod outboxes;
mod stream;
mod track;
mod wire;

pub use histogram::Histogram;
pub use log::LogId;
pub use outboxes::{Outboxes, Posted};
pub use stream::StreamId;
pub use track::{Options, PromptDelivery, Scores};
