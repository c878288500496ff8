//! Why a request waits: what it is told while it waits, and where its stats says the time went.

use crate::driver::{Driver, config};
use chairlift_core::{
    Config, NewRequest, RequestId, RequestStats, WaitCause,
    events::{EndReason, EventKind, Events, Failure},
    policy::Policy,
    scheduler::{Change, RequestState},
};

fn one_row() -> Config {
    Config {
        max_num_seqs: 1,
        ..config(Policy::Continuous)
    }
}

fn cause(driver: &Driver, request: RequestId) -> Option<WaitCause> {
    let waiting = driver.scheduler.explain(request);
    waiting.expect("the request lives").cause
}

/// Where the time of a request went that is ended now.
fn waits(driver: &mut Driver, request: RequestId) -> Vec<(WaitCause, u64)> {
    let mut events = Events::default();
    driver.scheduler.take_events(&mut events);
    driver
        .scheduler
        .abort(driver.now, request, EndReason::Cancelled);
    driver.scheduler.take_events(&mut events);
    let stats = events.list.iter().find_map(|event| match &event.kind {
        EventKind::Ended(end) if event.request == request => Some(events.ends[*end].stats),
        _ => None,
    });
    times(&stats.expect("the request ends"))
}

fn times(stats: &RequestStats) -> Vec<(WaitCause, u64)> {
    let times = WaitCause::ALL.map(|cause| (cause, stats.wait_times.get(cause)));
    times.into_iter().filter(|&(_, time)| time > 0).collect()
}

fn step_at(driver: &mut Driver, now: u64) -> String {
    driver.now = now;
    driver.step()
}

#[test]
fn a_request_without_a_row_waits_for_one_and_then_for_nothing() {
    let mut driver = Driver::new(one_row());
    driver.add('A', 2, 2);
    step_at(&mut driver, 10);
    let b = driver.add('B', 2, 9);
    assert_eq!(
        cause(&driver, b),
        Some(WaitCause::Step),
        "it came after the step was planned"
    );
    step_at(&mut driver, 14);
    assert_eq!(cause(&driver, b), Some(WaitCause::Row));
    assert_eq!(step_at(&mut driver, 20), "B2*");
    assert_eq!(cause(&driver, b), None);
    assert_eq!(
        waits(&mut driver, b),
        [(WaitCause::Step, 4), (WaitCause::Row, 6)]
    );
}

#[test]
fn a_request_without_blocks_waits_for_them() {
    let mut driver = Driver::new(Config {
        num_blocks: 4,
        ..config(Policy::Continuous)
    });
    driver.add('A', 8, 4);
    step_at(&mut driver, 0);
    let b = driver.add('B', 8, 1);
    step_at(&mut driver, 5);
    assert_eq!(cause(&driver, b), Some(WaitCause::Blocks));
    driver.now = 9;
    assert_eq!(
        waits(&mut driver, b),
        [(WaitCause::Step, 5), (WaitCause::Blocks, 4)]
    );
}

#[test]
fn a_request_that_the_step_has_no_tokens_for_waits_for_the_budget() {
    let mut driver = Driver::new(config(Policy::Continuous));
    driver.add('A', 16, 4);
    let b = driver.add('B', 8, 1);
    assert_eq!(step_at(&mut driver, 3), "A8");
    assert_eq!(cause(&driver, b), Some(WaitCause::Budget));
    step_at(&mut driver, 7);
    driver.now = 8;
    assert_eq!(
        waits(&mut driver, b),
        [(WaitCause::Step, 3), (WaitCause::Budget, 5)]
    );
}

#[test]
fn a_closed_gate_is_the_policy_and_a_row_without_tokens_the_budget() {
    let batch_of_two = Policy::Batched {
        size: 2,
        patience: 1000,
    };
    let mut driver = Driver::new(config(batch_of_two));
    let a = driver.add('A', 8, 4);
    assert_eq!(step_at(&mut driver, 0), "-");
    assert_eq!(cause(&driver, a), Some(WaitCause::Policy));
    driver.now = 10;
    let b = driver.add('B', 4, 4);
    assert_eq!(step_at(&mut driver, 10), "A8*");
    let waiting = driver.scheduler.explain(b).expect("it lives");
    assert_eq!(
        (waiting.state, waiting.cause, waiting.num_before),
        (RequestState::Running, None, 0)
    );
    let c = driver.add('C', 1, 1);
    step_at(&mut driver, 14);
    assert_eq!(cause(&driver, c), Some(WaitCause::Policy), "a batch runs");
    driver.now = 15;
    assert_eq!(waits(&mut driver, b), [(WaitCause::Budget, 4)]);
    assert_eq!(waits(&mut driver, a), [(WaitCause::Policy, 10)]);
}

#[test]
fn who_is_not_next_by_its_share_waits_for_it() {
    let mut driver = Driver::new(one_row());
    let of = |tenant: &str| {
        let mut new = NewRequest::new(vec![1; 2], 9);
        tenant.clone_into(&mut new.namespace.tenant);
        new
    };
    driver.add_request('A', of("flood"));
    step_at(&mut driver, 0);
    let more = driver.add_request('B', of("flood"));
    let quiet = driver.add_request('Q', of("quiet"));
    step_at(&mut driver, 0);
    // They began alike, and the flood was served since.
    step_at(&mut driver, 0);
    let causes = [more, quiet].map(|request| cause(&driver, request));
    assert_eq!(causes, [Some(WaitCause::Share), Some(WaitCause::Row)]);
    driver.now = 30;
    assert_eq!(waits(&mut driver, quiet), [(WaitCause::Row, 30)]);
    step_at(&mut driver, 30);
    driver.now = 31;
    assert_eq!(
        waits(&mut driver, more),
        [(WaitCause::Row, 1), (WaitCause::Share, 30)]
    );
}

#[test]
fn a_pause_is_told_and_counted_apart() {
    let mut driver = Driver::new(one_row());
    let a = driver.add('A', 2, 9);
    step_at(&mut driver, 0);
    let b = driver.add('B', 2, 9);
    driver.pause(a, true);
    driver.pause(b, true);
    let [runs, waits_outside] = [a, b].map(|id| driver.scheduler.explain(id).expect("it lives"));
    assert_eq!(
        (runs.state, runs.num_computed, runs.num_tokens),
        (RequestState::Suspended, 2, 3)
    );
    assert_eq!(
        (waits_outside.state, waits_outside.num_tokens),
        (RequestState::Suspended, 2)
    );
    assert_eq!(
        [runs.cause, waits_outside.cause],
        [Some(WaitCause::Suspended); 2]
    );
    driver.now = 7;
    driver.pause(a, false);
    driver.pause(b, false);
    step_at(&mut driver, 9);
    driver.now = 12;
    let expected = [
        (WaitCause::Step, 2),
        (WaitCause::Row, 3),
        (WaitCause::Suspended, 7),
    ];
    assert_eq!(waits(&mut driver, b), expected);
}

#[test]
fn requests_before_one_are_counted_and_those_who_ended_stand_nowhere() {
    let mut driver = Driver::new(one_row());
    let a = driver.add('A', 2, 9);
    step_at(&mut driver, 0);
    let [b, c] = ['B', 'C'].map(|name| driver.add(name, 2, 1));
    let before = |driver: &Driver| {
        [b, c].map(|id| driver.scheduler.explain(id).expect("it lives").num_before)
    };
    assert_eq!(before(&driver), [0, 1]);
    let first = Change {
        schedule: Some(chairlift_core::scheduler::Schedule {
            priority: 1,
            ..Default::default()
        }),
        ..Change::default()
    };
    driver.change(c, first);
    assert_eq!(before(&driver), [1, 0]);
    driver
        .scheduler
        .abort(0, a, EndReason::Failed(Failure::Draining));
    assert_eq!(driver.scheduler.explain(a), None);
    assert_eq!(driver.scheduler.explain(RequestId(u64::MAX)), None);
}

#[test]
fn a_clock_that_steps_back_adds_nothing() {
    let mut driver = Driver::new(one_row());
    driver.add('A', 2, 9);
    step_at(&mut driver, 100);
    let b = driver.add('B', 2, 1);
    for now in [110, 50, 109, 112] {
        step_at(&mut driver, now);
    }
    let all: u64 = waits(&mut driver, b).iter().map(|&(_, time)| time).sum();
    assert_eq!(all, 12);
}

#[test]
fn the_wait_after_a_preemption_is_not_in_the_account() {
    let mut driver = Driver::new(Config {
        num_blocks: 1 + 4,
        ..config(Policy::Continuous)
    });
    driver.add('B', 7, 9);
    let a = driver.add('A', 2, 9);
    driver.now = 5;
    while driver.load().num_preemptions == 0 {
        driver.step();
    }
    let waiting = driver.scheduler.explain(a).expect("it lives");
    assert_eq!(
        (waiting.state, waiting.num_computed),
        (RequestState::Waiting, 0)
    );
    driver.now = 50;
    assert_eq!(waits(&mut driver, a), [(WaitCause::Step, 5)]);
}
