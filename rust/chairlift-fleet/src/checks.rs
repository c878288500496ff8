//! What a fleet and a trace must be.

use chairlift_core::Config;
use chairlift_router::ConfigError;

use crate::{options::Options, work::Work};

/// Refuses the first setting that is out of range.
pub(crate) fn check(config: &Config, options: &Options, work: &Work) -> Result<(), ConfigError> {
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
    if let Some(roles) = options.roles {
        if !(1..options.num_replicas).contains(&roles.num_prefill) {
            return refuse("roles: expected a prefill and a decode replica at least");
        }
        if options.failures.is_some() || options.autoscale.is_some() {
            return refuse("roles: expected none with failures or an autoscaler");
        }
        let is_plain = config.kv_groups.len() == 1 && config.kv_groups[0].window.is_none();
        if !is_plain || config.state_snapshots.is_some() || !config.prefix_cache {
            return refuse(
                "roles: expected a model without windows and states, and a prefix cache",
            );
        }
        if !(roles.transfer_s >= 0.0 && roles.transfer_s.is_finite()) {
            return refuse("transfer: expected a time of at least 0");
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
