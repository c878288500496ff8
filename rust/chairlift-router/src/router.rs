//! One decision after another.

use thiserror::Error;

use crate::{
    index::Index,
    load::{ANSWER_WEIGHT, Loads},
    random::Random,
    replica_id::ReplicaId,
};

/// Replicas of a router at most.
pub const MAX_REPLICAS: usize = 4096;

/// Names that the index of a router holds at most, over all replicas: about 80 bytes each.
pub const MAX_NAMES: usize = 1 << 24;

/// Beyond its bound a replica may have so many requests of mean weight: a fleet with little to do needs no balance.
const SLACK: f64 = 4.0;

/// With [`Routing::Prefix`] a replica may have so many times the mean load.
const PREFIX_BOUND: f64 = 1.1;

/// The same with [`Routing::Both`], whose score looks at the load already.
const BOTH_BOUND: f64 = 1.5;

/// How a replica is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// One after another.
    RoundRobin,
    /// The one with the fewest tokens in flight.
    LeastLoad,
    /// The one that has to compute the fewest tokens of the prompt, among those with at most 1.1 times the mean load,
    /// and four requests.
    Prefix,
    /// The one with the lowest `tokens to compute x (1 + load / mean load)`, among those with at most 1.5 times the mean,
    /// and four requests.
    Both,
}

/// Settings of a [`Router`].
#[derive(Clone, Copy, Debug)]
pub struct RouterConfig {
    pub routing: Routing,
    /// From 1 to [`MAX_REPLICAS`].
    pub num_replicas: usize,
    /// Names that a replica's cache holds.
    pub names_per_replica: usize,
    /// The seed of the draws that break ties.
    pub seed: u64,
}

/// A setting is out of range.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// What the router sees of a request.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The names of its blocks, from the first on: equal names mean equal beginnings.
    pub names: &'a [u64],
    /// Tokens that a name stands for.
    pub tokens_per_name: usize,
    pub num_tokens: usize,
}

/// A request in flight; it is given back when the request ends.
#[derive(Debug, PartialEq)]
#[must_use = "a request that does not end counts for ever"]
pub struct Ticket {
    replica: ReplicaId,
    num_uncached: usize,
}

impl Ticket {
    /// Where the request goes.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// Tokens of its prompt that the replica has to compute, as far as the router knows.
    pub fn num_uncached(&self) -> usize {
        self.num_uncached
    }

    fn weight(&self) -> f64 {
        self.num_uncached as f64 + ANSWER_WEIGHT
    }
}

/// Chooses a replica for each request.
#[derive(Clone, Debug)]
pub struct Router {
    routing: Routing,
    index: Index,
    loads: Loads,
    random: Random,
    /// The replica that is next in turn.
    next: ReplicaId,
    /// Replicas with the lowest score.
    lowest: Vec<ReplicaId>,
}

impl Router {
    /// A router whose replicas are all up and have nothing cached.
    ///
    /// # Errors
    /// Names the setting that is out of range.
    pub fn new(config: RouterConfig) -> Result<Self, ConfigError> {
        let (num_replicas, num_names) = (config.num_replicas, config.names_per_replica);
        if !(1..=MAX_REPLICAS).contains(&num_replicas) {
            let message = format!("replicas: expected 1 to {MAX_REPLICAS}, got {num_replicas}");
            return Err(ConfigError(message));
        }
        if num_names == 0 {
            let message = "names_per_replica: expected at least 1, got 0".into();
            return Err(ConfigError(message));
        }
        Ok(Self {
            routing: config.routing,
            index: Index::new(num_replicas, num_names.min(MAX_NAMES / num_replicas)),
            loads: Loads::new(num_replicas),
            random: Random::new(config.seed),
            next: 0,
            lowest: Vec::with_capacity(num_replicas),
        })
    }

    /// Chooses a replica for a request, which is in flight from now on; None if no replica is up.
    pub fn route(&mut self, prompt: Prompt<'_>) -> Option<Ticket> {
        self.route_if(prompt, |_| true)
    }

    /// The same among some replicas, in ascending order; None if none of them is up.
    pub fn route_among(&mut self, prompt: Prompt<'_>, among: &[ReplicaId]) -> Option<Ticket> {
        self.route_if(prompt, |replica| among.binary_search(&replica).is_ok())
    }

    fn route_if(&mut self, prompt: Prompt<'_>, may: impl Fn(ReplicaId) -> bool) -> Option<Ticket> {
        if self.loads.num_up() == 0 {
            return None;
        }
        let knows_prefixes = matches!(self.routing, Routing::Prefix | Routing::Both);
        let names = if knows_prefixes { prompt.names } else { &[] };
        self.index.lookup(names);
        let mean = self.loads.mean();
        let bound = |times: f64| times * mean + SLACK * self.loads.mean_weight();
        let replica = match self.routing {
            Routing::RoundRobin => self.next_up(&may),
            Routing::LeastLoad => self.lowest(&prompt, &may, mean, f64::INFINITY),
            Routing::Prefix => self.lowest(&prompt, &may, mean, bound(PREFIX_BOUND)),
            Routing::Both => self.lowest(&prompt, &may, mean, bound(BOTH_BOUND)),
        };
        // All are above the bound where the requests of other routers are most of their load.
        let replica = replica.or_else(|| self.lowest(&prompt, &may, mean, f64::INFINITY))?;
        let ticket = Ticket {
            replica,
            num_uncached: self.num_uncached(&prompt, replica),
        };
        self.next = (replica + 1) % self.loads.num_replicas() as ReplicaId;
        self.loads.add(replica, ticket.weight());
        self.index.insert(replica, names);
        Some(ticket)
    }

    /// Tokens of the prompt that was looked up that a replica has to compute; the last is computed always.
    fn num_uncached(&self, prompt: &Prompt<'_>, replica: ReplicaId) -> usize {
        let num_cached = self.index.matched(replica) * prompt.tokens_per_name;
        prompt.num_tokens.saturating_sub(num_cached).max(1)
    }

    fn next_up(&self, may: impl Fn(ReplicaId) -> bool) -> Option<ReplicaId> {
        let count = self.loads.num_replicas() as ReplicaId;
        let mut order = (0..count).map(|step| (self.next + step) % count);
        order.find(|&replica| self.loads.is_up(replica) && may(replica))
    }

    /// One of the replicas with the lowest score among those whose load is within the bound, at random; None of none.
    fn lowest(
        &mut self,
        prompt: &Prompt<'_>,
        may: impl Fn(ReplicaId) -> bool,
        mean: f64,
        bound: f64,
    ) -> Option<ReplicaId> {
        let mut lowest = f64::INFINITY;
        self.lowest.clear();
        for replica in 0..self.loads.num_replicas() as ReplicaId {
            let load = self.loads.of(replica);
            if !self.loads.is_up(replica) || load > bound || !may(replica) {
                continue;
            }
            let score = match self.routing {
                Routing::RoundRobin | Routing::LeastLoad => self.loads.waiting(replica),
                Routing::Prefix => self.num_uncached(prompt, replica) as f64,
                Routing::Both => {
                    self.num_uncached(prompt, replica) as f64 * (1.0 + load / mean.max(1.0))
                }
            };
            if score < lowest {
                lowest = score;
                self.lowest.clear();
            }
            if score <= lowest {
                self.lowest.push(replica);
            }
        }
        match self.lowest.len() {
            0 => None,
            count => Some(self.lowest[self.random.below(count)]),
        }
    }

    /// A request ended, or its replica was lost.
    #[expect(clippy::needless_pass_by_value, reason = "a request ends once")]
    pub fn end(&mut self, ticket: Ticket) {
        self.loads.end(ticket.replica, ticket.weight());
    }

    /// A replica says how many requests it has, waiting or running; those of other routers are among them.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn report(&mut self, replica: ReplicaId, num_requests: u32) {
        self.loads.report(replica, num_requests);
    }

    /// A replica gets no more requests, and what it has cached is forgotten.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn leave(&mut self, replica: ReplicaId) {
        self.loads.leave(replica);
        self.index.forget(replica);
    }

    /// A replica with an empty cache gets requests from now on.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn join(&mut self, replica: ReplicaId) {
        self.loads.join(replica);
    }

    /// Requests of this router that a replica has.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn num_in_flight(&self, replica: ReplicaId) -> u32 {
        self.loads.num_in_flight(replica)
    }

    /// The load of a replica in tokens: in flight, of other routers, and routed lately.
    ///
    /// # Panics
    /// If there is no such replica.
    pub fn load(&self, replica: ReplicaId) -> f64 {
        self.loads.of(replica)
    }

    /// Names in the index, one counted for each replica that has it.
    pub fn num_names(&self) -> usize {
        self.index.len()
    }
}
