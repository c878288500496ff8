//! All waiting requests at once: counts by cause, and the list of a tenant, which say what each request is told.

use std::collections::HashMap;

use crate::driver::{Driver, config};
use chairlift_core::{Config, Load, Namespace, NewRequest, RequestId, WaitCause, policy::Policy};

fn by_cause(load: &Load) -> HashMap<WaitCause, usize> {
    let counts = [
        (WaitCause::Step, load.num_waiting_step),
        (WaitCause::Row, load.num_waiting_row),
        (WaitCause::Blocks, load.num_waiting_blocks),
        (WaitCause::Budget, load.num_waiting_budget),
        (WaitCause::Policy, load.num_waiting_policy),
        (WaitCause::Share, load.num_waiting_share),
        (WaitCause::Suspended, load.num_waiting_suspended),
    ];
    counts.into_iter().filter(|&(_, count)| count > 0).collect()
}

fn of_tenant(tenant: &str, credit: Option<u64>) -> NewRequest {
    NewRequest {
        credit,
        namespace: Namespace {
            tenant: tenant.into(),
            ..Namespace::default()
        },
        ..NewRequest::new(vec![7; 3], 9)
    }
}

/// A row of each tenant is taken; four requests of ann and two of bob wait, and one of ann has no credit.
fn crowded() -> (Driver, Vec<RequestId>) {
    let mut driver = Driver::new(Config {
        max_num_seqs: 2,
        ..config(Policy::Continuous)
    });
    let names = "ABCDEFGHI".chars();
    let tenants = [
        "ann", "bob", "ann", "ann", "bob", "ann", "bob", "ann", "ann",
    ];
    let mut ids = Vec::new();
    for (i, (name, tenant)) in names.zip(tenants).enumerate() {
        let credit = (i == 8).then_some(0);
        ids.push(driver.add_request(name, of_tenant(tenant, credit)));
        if i == 1 {
            driver.step();
        }
    }
    driver.step();
    (driver, ids)
}

#[test]
fn the_counts_by_cause_are_those_of_each_request_together() {
    let (driver, ids) = crowded();
    let mut expected = HashMap::new();
    for id in ids {
        let waiting = driver.scheduler.explain(id).expect("it lives");
        if let Some(cause) = waiting.cause {
            *expected.entry(cause).or_insert(0) += 1;
        }
    }
    assert!(expected.contains_key(&WaitCause::Row) && expected.contains_key(&WaitCause::Share));
    assert_eq!(by_cause(&driver.load()), expected);
    assert_eq!(
        expected.values().sum::<usize>(),
        driver.load().num_waiting,
        "each has one cause"
    );
}

#[test]
fn the_list_of_a_tenant_has_its_requests_alone_and_says_of_each_what_explain_says() {
    let (driver, _) = crowded();
    let list = driver.scheduler.waiting_of("ann", 100);
    assert_eq!((list.requests.len(), list.num_waiting), (5, 5));
    for (id, explanation) in &list.requests {
        assert_eq!(driver.scheduler.explain(*id), Some(*explanation));
    }
    let before: Vec<_> = list
        .requests
        .iter()
        .map(|(_, status)| status.num_before)
        .collect();
    assert!(
        before[..4].is_sorted(),
        "in the order of the queue: {before:?}"
    );
    assert_eq!(driver.scheduler.waiting_of("bob", 100).num_waiting, 2);
    assert_eq!(driver.scheduler.waiting_of("unknown", 100).num_waiting, 0);
}

#[test]
fn a_long_list_is_cut_and_counted() {
    let (driver, _) = crowded();
    let list = driver.scheduler.waiting_of("ann", 2);
    assert_eq!((list.requests.len(), list.num_waiting), (2, 5));
}
