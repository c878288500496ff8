//! `Router`: converts; a request in flight is a number.

use std::collections::HashMap;

use chairlift_router::{Prompt, Routing, Ticket, router};
use chairlift_tensor::{Borrows, Tensor};
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::error;

/// The ways to choose a replica, by their names.
pub(crate) fn routing(name: &str) -> PyResult<Routing> {
    match name {
        "round-robin" => Ok(Routing::RoundRobin),
        "least-load" => Ok(Routing::LeastLoad),
        "prefix" => Ok(Routing::Prefix),
        "both" => Ok(Routing::Both),
        _ => Err(error::ConfigError::new_err(format!(
            "routing: expected round-robin, least-load, prefix or both, got {name:?}"
        ))),
    }
}

/// Chooses a replica for each request.
#[pyclass(module = "chairlift._core")]
pub(crate) struct Router {
    inner: router::Router,
    tickets: HashMap<u64, Ticket>,
    num_routed: u64,
    num_replicas: usize,
}

#[pymethods]
impl Router {
    #[new]
    #[pyo3(signature = (*, routing, num_replicas, names_per_replica, seed))]
    fn new(
        routing: &str,
        num_replicas: usize,
        names_per_replica: usize,
        seed: u64,
    ) -> PyResult<Self> {
        let config = router::RouterConfig {
            routing: self::routing(routing)?,
            num_replicas,
            names_per_replica,
            seed,
        };
        let inner = router::Router::new(config);
        Ok(Self {
            inner: inner.map_err(|refused| error::ConfigError::new_err(refused.0))?,
            tickets: HashMap::new(),
            num_routed: 0,
            num_replicas,
        })
    }

    /// The number of the request in flight, and its replica; None if no replica is up. With `among` one of these, in
    /// ascending order.
    #[pyo3(signature = (names, tokens_per_name, num_tokens, among=None))]
    fn route(
        &mut self,
        names: Tensor,
        tokens_per_name: usize,
        num_tokens: usize,
        among: Option<Vec<u16>>,
    ) -> PyResult<Option<(u64, u16)>> {
        let mut borrows = Borrows::default();
        let names = borrows.slice::<i64>("names", &names)?;
        let prompt = Prompt {
            names: bytemuck::cast_slice(names),
            tokens_per_name,
            num_tokens,
        };
        let ticket = match among {
            Some(among) => self.inner.route_among(prompt, &among),
            None => self.inner.route(prompt),
        };
        Ok(ticket.map(|ticket| {
            self.num_routed += 1;
            let replica = ticket.replica();
            self.tickets.insert(self.num_routed, ticket);
            (self.num_routed, replica)
        }))
    }

    fn end(&mut self, request: u64) -> PyResult<()> {
        let ticket = self.tickets.remove(&request);
        let unknown = || PyValueError::new_err(format!("request: {request} is not in flight"));
        self.inner.end(ticket.ok_or_else(unknown)?);
        Ok(())
    }

    fn report(&mut self, replica: u16, num_requests: u32) -> PyResult<()> {
        self.check(replica)?;
        self.inner.report(replica, num_requests);
        Ok(())
    }

    fn leave(&mut self, replica: u16) -> PyResult<()> {
        self.check(replica)?;
        self.inner.leave(replica);
        Ok(())
    }

    fn join(&mut self, replica: u16) -> PyResult<()> {
        self.check(replica)?;
        self.inner.join(replica);
        Ok(())
    }

    fn num_in_flight(&self, replica: u16) -> PyResult<u32> {
        self.check(replica)?;
        Ok(self.inner.num_in_flight(replica))
    }
}

impl Router {
    fn check(&self, replica: u16) -> PyResult<()> {
        if usize::from(replica) < self.num_replicas {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "replica: expected a number below {}, got {replica}",
            self.num_replicas
        )))
    }
}
