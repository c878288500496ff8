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
#![forbid(unsafe_code)]

mod histogram;
mod outboxes;
mod stream;
mod track;
mod wire;

pub use histogram::Histogram;
pub use outboxes::{Outboxes, Posted, Scores};
pub use stream::StreamId;
pub use track::Options;
