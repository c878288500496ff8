//! Chooses a replica for each request, by what the replica has cached and how much it has to do.
//!
//! ```text
//! names of the prompt's blocks --> index: how many tokens each replica has cached --+
//!                                                                                   +--> score, the lowest wins
//! own requests in flight, what was routed lately, reports of replicas -> load ------+    (ties at random)
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`router`] | one decision after another |
//! | `index` | which replicas have which blocks, as far as the router knows; bounded |
//! | `load` | how much each replica has to do, as far as the router knows |
//! | [`random`] | numbers from a seed |
//!
//! There is no clock, thread, lock or I/O: the same calls give the same decisions. What was routed lately is counted in
//! requests and not in time, so that a fleet is balanced however fast it is.
#![forbid(unsafe_code)]

mod index;
mod load;
pub mod random;
mod replica_id;
pub mod router;

pub use replica_id::ReplicaId;
pub use router::{ConfigError, MAX_REPLICAS, Prompt, Router, RouterConfig, Routing, Ticket};
