//! What a fleet is.

use chairlift_core::Nanos;
use chairlift_router::Routing;

use crate::roles::Roles;

/// The duration of a step, in seconds: a linear model.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTime {
    pub fixed_s: f64,
    /// For each token that is computed.
    pub per_token_s: f64,
    /// For each token whose keys and values are read, summed over the rows.
    pub per_context_token_s: f64,
}

impl StepTime {
    /// The duration of a step; at least 1, so that the clock moves.
    pub fn duration(&self, num_tokens: usize, num_context: usize) -> Nanos {
        let tokens_s =
            self.per_token_s * num_tokens as f64 + self.per_context_token_s * num_context as f64;
        let nanos = ((self.fixed_s + tokens_s) * 1e9).round_ties_even();
        (nanos as Nanos).max(1)
    }
}

/// Replicas that are lost, and come back with an empty cache.
#[derive(Clone, Copy, Debug)]
pub struct Failures {
    /// Losses of each replica, on average; they are independent.
    pub per_hour: f64,
    /// From a loss to the time when routers know it.
    pub detection: Nanos,
    /// From a loss to the time when the replica takes requests again.
    pub restart: Nanos,
}

/// A number of replicas that follows the requests in flight.
#[derive(Clone, Copy, Debug)]
pub struct Autoscale {
    /// Replicas at least, and at the start.
    pub min_replicas: usize,
    /// Requests in flight for each replica.
    pub target: usize,
    /// How long more replicas must be wanted before they start.
    pub up_delay: Nanos,
    /// How long fewer must be wanted before some are drained.
    pub down_delay: Nanos,
    /// From a start to the first request.
    pub start: Nanos,
}

/// Settings of a [`crate::Fleet`] beside those of its schedulers.
#[derive(Clone, Debug)]
pub struct Options {
    pub num_replicas: usize,
    pub routing: Routing,
    /// The seed of all draws: ties of routers, and losses.
    pub seed: u64,
    /// Requests take turns among so many routers, each of which knows its own only.
    pub num_routers: usize,
    /// From a router to a replica, and back.
    pub lag: Nanos,
    /// How often each replica reports its load to all routers; None is never.
    pub report_interval: Option<Nanos>,
    pub failures: Option<Failures>,
    pub autoscale: Option<Autoscale>,
    pub roles: Option<Roles>,
    pub step_time: StepTime,
}
