//! What a fleet and a trace must be.

use chairlift_router::ConfigError;

use crate::{options::Options, work::Work};

/// Refuses the first setting that is out of range.
pub(crate) fn check(options: &Options, work: &Work) -> Result<(), ConfigError> {
    let refuse = |message: &str| Err(ConfigError(message.into()));
    if options.num_routers == 0 {
        return refuse("routers: expected at least 1, got 0");
    }
    if options.report_interval == Some(0) {
        return refuse("report_interval: expected more than 0, got 0");
    }
    if options
        .failures
        .is_some_and(|failures| failures.per_hour <= 0.0)
    {
        return refuse("failures: expected more than 0 per hour");
    }
    if let Some(autoscale) = options.autoscale {
        if !(1..=options.num_replicas).contains(&autoscale.min_replicas) {
            return refuse("min_replicas: expected 1 to the number of replicas");
        }
        if autoscale.target == 0 {
            return refuse("target_requests: expected at least 1, got 0");
        }
    }
    if work.tokens_per_name == 0 || work.requests.is_empty() {
        return refuse("trace: expected at least one request");
    }
    let is_inside = work.requests.iter().all(|request| {
        request.names.end <= work.names.len() && request.names.start <= request.names.end
    });
    if !is_inside || work.requests.len() > u32::MAX as usize {
        return refuse("trace: a request has names that there are not");
    }
    Ok(())
}
