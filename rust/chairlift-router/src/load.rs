//! How much each replica has to do, as far as the router knows, in tokens.
//!
//! - *In flight*: the requests that this router sent and that have not ended, counted at once.
//! - *Lately*: what was routed lately, in flight or not; each request that is routed takes a little from it. It balances a
//!   fleet in which no request stays long.
//! - *Of others*: requests that a replica reports beyond the router's own, at the mean weight of a request. A report is
//!   trusted within bounds: a replica that reports too many gets less work, and no more.

use crate::replica_id::ReplicaId;

/// What a request counts beside the tokens of its prompt that are computed: the router does not know its answer.
pub(crate) const ANSWER_WEIGHT: f64 = 256.0;

/// What was routed is half forgotten after about 90 more requests to the same replica.
const MEMORY: f64 = 128.0;

/// A reported number counts up to so many times the mean number in flight, and so many requests more.
const MAX_REPORTED: f64 = 8.0;

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    is_up: bool,
    num_in_flight: u32,
    in_flight: f64,
    /// In units of [`Loads::unit`].
    lately: f64,
    num_of_others: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Loads {
    replicas: Vec<Load>,
    num_up: usize,
    /// What a token that is routed now counts in `lately`: it grows, so that older ones count less.
    unit: f64,
    num_in_flight: usize,
    in_flight: f64,
    lately: f64,
    weight: f64,
    num_routed: f64,
}

impl Loads {
    pub(crate) fn new(num_replicas: usize) -> Self {
        let replica = Load {
            is_up: true,
            ..Load::default()
        };
        Self {
            replicas: vec![replica; num_replicas],
            num_up: num_replicas,
            unit: 1.0,
            num_in_flight: 0,
            in_flight: 0.0,
            lately: 0.0,
            weight: 0.0,
            num_routed: 0.0,
        }
    }

    pub(crate) fn num_replicas(&self) -> usize {
        self.replicas.len()
    }

    pub(crate) fn num_up(&self) -> usize {
        self.num_up
    }

    pub(crate) fn is_up(&self, replica: ReplicaId) -> bool {
        self.replicas[replica as usize].is_up
    }

    /// The tokens of a replica: in flight, of others, and routed lately.
    pub(crate) fn of(&self, replica: ReplicaId) -> f64 {
        let load = &self.replicas[replica as usize];
        self.waiting(replica) + load.lately / self.unit
    }

    /// The tokens that a replica has not computed, of others included.
    pub(crate) fn waiting(&self, replica: ReplicaId) -> f64 {
        let load = &self.replicas[replica as usize];
        if load.num_of_others == 0 {
            return load.in_flight;
        }
        let mean = self.num_in_flight as f64 / self.num_up.max(1) as f64;
        let max_others = MAX_REPORTED * (1.0 + mean);
        load.in_flight + self.mean_weight() * f64::from(load.num_of_others).min(max_others)
    }

    /// The mean weight of the requests that were routed.
    pub(crate) fn mean_weight(&self) -> f64 {
        if self.num_routed > 0.0 {
            self.weight / self.num_routed
        } else {
            ANSWER_WEIGHT
        }
    }

    /// The mean over the replicas that are up of what the router itself sent.
    pub(crate) fn mean(&self) -> f64 {
        (self.in_flight + self.lately / self.unit) / self.num_up.max(1) as f64
    }

    pub(crate) fn num_in_flight(&self, replica: ReplicaId) -> u32 {
        self.replicas[replica as usize].num_in_flight
    }

    pub(crate) fn add(&mut self, replica: ReplicaId, weight: f64) {
        self.unit *= 1.0 + 1.0 / (MEMORY * self.num_up.max(1) as f64);
        let load = &mut self.replicas[replica as usize];
        load.num_in_flight += 1;
        load.in_flight += weight;
        load.lately += weight * self.unit;
        self.num_in_flight += 1;
        self.in_flight += weight;
        self.lately += weight * self.unit;
        self.weight += weight;
        self.num_routed += 1.0;
        if self.unit > 1e60 {
            self.rescale();
        }
    }

    pub(crate) fn end(&mut self, replica: ReplicaId, weight: f64) {
        let load = &mut self.replicas[replica as usize];
        load.num_in_flight -= 1;
        self.num_in_flight -= 1;
        // Sums of floats: with none left there is nothing, not nearly nothing.
        let left = load.in_flight - weight;
        load.in_flight = if load.num_in_flight == 0 { 0.0 } else { left };
        let left = self.in_flight - weight;
        self.in_flight = if self.num_in_flight == 0 { 0.0 } else { left };
    }

    pub(crate) fn report(&mut self, replica: ReplicaId, num_requests: u32) {
        let load = &mut self.replicas[replica as usize];
        load.num_of_others = num_requests.saturating_sub(load.num_in_flight);
    }

    /// A replica takes no more requests; those in flight stay until they end.
    pub(crate) fn leave(&mut self, replica: ReplicaId) {
        let load = &mut self.replicas[replica as usize];
        if std::mem::take(&mut load.is_up) {
            self.num_up -= 1;
            self.lately -= load.lately;
            (load.lately, load.num_of_others) = (0.0, 0);
        }
        if self.num_up == 0 {
            self.lately = 0.0;
        }
    }

    /// A replica takes requests. It begins as if it had had the mean of the others, so that they do not all go to it.
    pub(crate) fn join(&mut self, replica: ReplicaId) {
        let mean = self.lately / self.num_up.max(1) as f64;
        let load = &mut self.replicas[replica as usize];
        if !std::mem::replace(&mut load.is_up, true) {
            self.num_up += 1;
            load.lately = mean;
            self.lately += mean;
        }
    }

    fn rescale(&mut self) {
        for load in &mut self.replicas {
            load.lately /= self.unit;
        }
        self.lately = self.replicas.iter().map(|load| load.lately).sum();
        self.unit = 1.0;
    }
}
