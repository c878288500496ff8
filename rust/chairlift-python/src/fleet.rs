//! `Fleet`: converts a trace and its settings, releases the GIL, and gives back what happened.

use std::collections::BTreeMap;

use chairlift_fleet::{
    Autoscale, Failures, NEVER, Options, Progress, Request, Roles, StepTime, Unanswered, Work,
};
use chairlift_tensor::{Borrows, Tensor};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyBytes};

use crate::{error, events::failure_name, router::routing, scheduler::Scheduler};

/// Numbers of a request.
const NUM_COLUMNS: usize = 12;

/// A run of a trace over many schedulers.
#[pyclass(module = "chairlift._core")]
pub(crate) struct Fleet {
    inner: chairlift_fleet::Fleet,
}

/// What a run has done so far.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct FleetRun {
    /// int64 of each request: first token, end (-1 is never) and tokens of its answer, found tokens of its prompt, the
    /// last replica to which it was sent.
    progress: Py<PyBytes>,
    /// int64: a gap between tokens, and how often it occurred.
    gaps: Py<PyBytes>,
    /// Computed by each replica.
    replica_tokens: Vec<u64>,
    num_steps: u64,
    num_rows: u64,
    kv_waste: f64,
    unanswered: BTreeMap<&'static str, u64>,
    num_names: u64,
    num_found: u64,
    num_resent: u64,
    num_losses: u64,
    max_replicas: usize,
    replica_s: f64,
    num_transferred_tokens: u64,
    num_whole: u64,
    num_partial: u64,
    num_local: u64,
}

/// A time or a number of a request, of which a negative one is none.
fn optional(value: i64) -> Option<u64> {
    u64::try_from(value).ok()
}

fn number(column: &str, value: i64) -> PyResult<usize> {
    usize::try_from(value)
        .map_err(|_| PyValueError::new_err(format!("{column}: expected at least 0, got {value}")))
}

fn requests(columns: &[i64]) -> PyResult<Vec<Request>> {
    let (rows, rest) = columns.as_chunks::<NUM_COLUMNS>();
    if !rest.is_empty() {
        let message = format!("requests: expected {NUM_COLUMNS} numbers of each request");
        return Err(PyValueError::new_err(message));
    }
    let mut num_names = 0;
    let request = |row: &[i64; NUM_COLUMNS]| {
        let names = num_names..num_names + number("num_names", row[3])?;
        num_names = names.end;
        Ok(Request {
            arrival: number("arrival", row[0])? as u64,
            num_prompt: number("num_prompt", row[1])?,
            num_output: number("num_output", row[2])?,
            names,
            tenant: number("tenant", row[4])? as u64,
            queue_timeout: optional(row[5]),
            time_to_first_token: optional(row[6]),
            time_limit: optional(row[7]),
            priority: row[8] as i32,
            cache_read: row[9] != 0,
            cache_write: row[10] != 0,
            cancelled: optional(row[11]),
        })
    };
    rows.iter().map(request).collect()
}

#[pymethods]
impl Fleet {
    #[new]
    #[pyo3(signature = (scheduler, requests, names, flushes, *, tokens_per_name, step_time,
        num_replicas, routing, seed, num_routers = 1, lag = 0, report_interval = None,
        failures = None, autoscale = None, roles = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python class"
    )]
    fn new(
        scheduler: PyRef<'_, Scheduler>,
        requests: Tensor,
        names: Tensor,
        flushes: Vec<u64>,
        tokens_per_name: usize,
        step_time: (f64, f64, f64),
        num_replicas: usize,
        routing: &str,
        seed: u64,
        num_routers: usize,
        lag: u64,
        report_interval: Option<u64>,
        failures: Option<(f64, u64, u64)>,
        autoscale: Option<(usize, usize, u64, u64, u64)>,
        roles: Option<(usize, f64)>,
    ) -> PyResult<Self> {
        let mut borrows = Borrows::default();
        let work = Work {
            requests: self::requests(borrows.slice("requests", &requests)?)?,
            names: bytemuck::cast_slice(borrows.slice::<i64>("names", &names)?).to_vec(),
            tokens_per_name,
            flushes,
        };
        let (fixed_s, per_token_s, per_context_token_s) = step_time;
        let options = Options {
            num_replicas,
            routing: self::routing(routing)?,
            seed,
            num_routers,
            lag,
            report_interval,
            failures: failures.map(|(per_hour, detection, restart)| Failures {
                per_hour,
                detection,
                restart,
            }),
            autoscale: autoscale.map(|(min_replicas, target, up_delay, down_delay, start)| {
                Autoscale {
                    min_replicas,
                    target,
                    up_delay,
                    down_delay,
                    start,
                }
            }),
            roles: roles.map(|(num_prefill, transfer_s)| Roles {
                num_prefill,
                transfer_s,
            }),
            step_time: StepTime {
                fixed_s,
                per_token_s,
                per_context_token_s,
            },
        };
        let inner = chairlift_fleet::Fleet::new(scheduler.config().clone(), options, work);
        let inner = inner.map_err(|refused| error::ConfigError::new_err(refused.0))?;
        Ok(Self { inner })
    }

    /// Handles up to so many events; false when nothing is left.
    fn run(&mut self, py: Python<'_>, num_events: usize) -> bool {
        py.detach(|| self.inner.run(num_events))
    }

    fn result(&self, py: Python<'_>) -> FleetRun {
        let outcomes = self.inner.outcomes();
        let time = |time| if time == NEVER { -1 } else { time as i64 };
        let row = |progress: &Progress| {
            [
                time(progress.first_token),
                time(progress.ended),
                progress.num_output as i64,
                progress.num_cached as i64,
                i64::from(progress.replica),
            ]
        };
        let progress: Vec<_> = outcomes.progress.iter().map(row).collect();
        let gaps = outcomes.gaps.counts().iter();
        let gaps: Vec<_> = gaps
            .map(|&(gap, count)| [gap as i64, count as i64])
            .collect();
        let mut unanswered = BTreeMap::new();
        for &(_, reason) in &outcomes.unanswered {
            let name = match reason {
                Unanswered::Refused(reason) => error::refusal_name(reason),
                Unanswered::Failed(failure) => failure_name(failure),
                Unanswered::Lost => "REPLICA_LOST",
            };
            *unanswered.entry(name).or_default() += 1;
        }
        let (num_names, num_found) = self.inner.names_found();
        let steps = || outcomes.steps.iter();
        FleetRun {
            progress: PyBytes::new(py, bytemuck::cast_slice(&progress)).unbind(),
            gaps: PyBytes::new(py, bytemuck::cast_slice(&gaps)).unbind(),
            replica_tokens: steps().map(|steps| steps.num_tokens).collect(),
            num_steps: steps().map(|steps| steps.num_steps).sum(),
            num_rows: steps().map(|steps| steps.num_rows).sum(),
            kv_waste: steps().map(|steps| steps.kv_waste).sum(),
            unanswered,
            num_names,
            num_found,
            num_resent: outcomes.num_resent,
            num_losses: outcomes.num_losses,
            max_replicas: outcomes.max_replicas,
            replica_s: outcomes.replica_time as f64 * 1e-9,
            num_transferred_tokens: outcomes.transfers.num_tokens,
            num_whole: outcomes.transfers.num_whole,
            num_partial: outcomes.transfers.num_partial,
            num_local: outcomes.transfers.num_local,
        }
    }

    /// Names that one cache without bounds would have found.
    fn ceiling(&self, py: Python<'_>) -> usize {
        py.detach(|| self.inner.work().ceiling(self.inner.config().block_size))
    }
}
