//! How the processes of one model meet.
//!
//! ```text
//!   rank 0    post | send |  compute  | gather | compute | gather | ... | wait
//!   rank 1         | recv |  compute  | gather | compute | gather | ... | wait
//!                  ^ each bar is one round of the barrier, which all ranks pass together
//! ```
//!
//! Ranks share memory, and nothing in it has two writers: a rank writes its own area, then arrives at a [`Barrier`], and
//! reads the areas of the others behind it. Areas alternate by the parity of the round, so that no rank overwrites what
//! another still reads ([`Round::parity`]). A rank that fails poisons the barrier; a rank that does
//! not arrive is found by the timeout of the others ([`Limits::timeout`]); a caller that sees a process end calls
//! [`Barrier::poison`]. Every other rank returns an error then.
//!
//! On several hosts, connections take the place of the memory ([`Mesh`]).
//!
//! The crate is safe: the caller maps the memory, and hands it over as atomic words.

mod barrier;
mod broken;
mod hosts;
mod message;
mod word;

pub use barrier::{Barrier, Limits, Round, num_words};
pub use broken::{Broken, Cause};
pub use hosts::{Key, Listener, MeetError, Mesh, join};
pub use message::{HEADER, MessageError, open, seal};
pub use word::Word;
