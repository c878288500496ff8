//! Ranks on several hosts: a connection between each two of them, in the place of shared memory.
//!
//! ```text
//!   rank 0   listens, waits for all      -> tells addresses -> settings -> messages and parts
//!   rank 1   joins rank 0                -> listens for rank 2
//!   rank 2   joins rank 0                -> joins rank 1
//! ```
//!
//! Both ends of a connection prove that they have the same key ([`handshake`]); what follows is not encrypted. A part of
//! a gather goes to each other rank and comes from each other rank at the same time, so that no two ranks wait for each
//! other with full buffers ([`Mesh`]). The order of frames is the same on every connection, so that no barrier is needed.

mod exchange;
mod frame;
mod handshake;
mod meeting;
mod mesh;

pub use handshake::Key;
pub use meeting::{Listener, MeetError, join};
pub use mesh::Mesh;
