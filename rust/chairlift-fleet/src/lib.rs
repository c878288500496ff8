//! A fleet on a virtual clock: many real schedulers behind the real router, in one process, without a model.
//!
//! ```text
//! trace --> router --> inbox of a replica --> its scheduler: schedule, step time, update --+
//!             ^                                                                            |
//!             +---------------- ends of requests, after the lag of the router <-----------+
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`work`] | the requests of a trace, and their synthetic tokens |
//! | [`options`] | what the fleet is: its router, step time, failures, autoscaler |
//! | `command` | what a replica is told, and what it needs to run |
//! | `replica` | one replica, and the time to which it has run |
//! | `engine` | its scheduler, and what a runner would know; its part of a prefill or a decode replica |
//! | [`roles`] | prompts that other replicas compute |
//! | [`fleet`] | the loop: what happens next, anywhere |
//! | `autoscaler` | how many replicas there should be |
//! | [`outcomes`] | what became of each request, and sums over the steps |
//! | `checks` | what options and trace must be |
//! | `gaps` | the gaps between tokens, in bounded memory |
//!
//! Replicas touch one another through the router alone. So a replica runs up to the next thing that happens outside of it
//! in one go, however many steps that takes, and the loop sees one event. With roles they tell one another of blocks: then a
//! replica runs no further than to the next step of another. Same arguments, same result on every machine.
#![forbid(unsafe_code)]

mod autoscaler;
mod checks;
mod clock;
mod command;
mod engine;
pub mod fleet;
mod gaps;
pub mod options;
pub mod outcomes;
mod replica;
pub mod roles;
pub mod work;

pub use fleet::Fleet;
pub use options::{Autoscale, Failures, Options, StepTime};
pub use outcomes::{NEVER, Outcomes, Progress, Transfers, Unanswered};
pub use roles::Roles;
pub use work::{Request, Work};
