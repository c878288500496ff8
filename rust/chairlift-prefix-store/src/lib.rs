//! Blocks of the prefix cache on disk, and recurrent states behind them, so that they outlive their eviction and the process.
//!
//! ```text
//! engine thread   offer ---> bounded queue ---> writer thread ---> segment files, append-only
//!                 begin_load -> bounded queue -> reader thread ---> bounded queue ---> Load::next
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`Store`] | what the engine calls: it never waits for a file |
//! | `segment` | the form of a file: a header, then records of one size with a checksum each |
//! | `index` | which block is where; rebuilt by a scan; bytes are bounded by the eviction of whole segments |
//! | `writer`, `reader` | the two threads |
//! | `pieces` | a recurrent state as records of the size of a block |
//! | `admission` | which blocks are worth a write: those that are used again |
//!
//! What is read is what was written under this key for this layout, or a miss: a record that is short, changed or of
//! another layout is not given out. A write or a read that fails costs a counter, never a request.
#![forbid(unsafe_code)]

mod admission;
mod counters;
mod error;
mod index;
mod pieces;
mod reader;
mod segment;
mod store;
mod writer;

pub use counters::Stats;
pub use error::StoreError;
pub use reader::{Load, Progress};
pub use segment::Name;
pub use store::{Options, Store};
