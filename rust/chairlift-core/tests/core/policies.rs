//! Who joins when, as step traces: `A5*` is five tokens of request A, `*` where its next token is sampled.

use crate::driver::{Driver, config};
use chairlift_core::{policy::Policy, scheduler::Next};

const CONTINUOUS: Policy = Policy::Continuous;

#[test]
fn continuous_batching_lets_requests_join_and_leave_at_every_step() {
    let mut driver = Driver::new(config(CONTINUOUS));
    driver.add('A', 3, 4);
    driver.add('B', 2, 2);
    assert_eq!(driver.step(), "A3* B2*");
    driver.add('C', 4, 2);
    assert_eq!(driver.trace(), ["A1* B1* C4*", "A1* C1*", "A1*"]);
    driver.assert_empty();
}

#[test]
fn static_batching_waits_for_a_full_batch_and_for_its_longest_request() {
    let mut driver = Driver::new(config(Policy::Batched {
        size: 2,
        patience: 1000,
    }));
    driver.add('A', 2, 4);
    assert_eq!(driver.step(), "-", "half a batch waits");
    driver.add('B', 2, 1);
    driver.add('C', 2, 2);
    driver.add('D', 2, 1);
    assert_eq!(
        driver.trace(),
        ["A2* B2*", "A1*", "A1*", "A1*", "C2* D2*", "C1*"]
    );
    driver.assert_empty();
}

#[test]
fn the_row_of_a_finished_request_stays_empty_until_its_static_batch_ends() {
    let mut driver = Driver::new(config(Policy::Batched {
        size: 2,
        patience: 1000,
    }));
    driver.add('A', 2, 3);
    driver.add('B', 2, 1);
    driver.step();
    assert_eq!(
        (driver.load().num_running, driver.load().num_rows_held),
        (1, 2)
    );
    driver.trace();
    assert_eq!(driver.load().num_rows_held, 0);
}

#[test]
fn a_partial_static_batch_goes_when_the_input_is_flushed() {
    let mut driver = Driver::new(config(Policy::Batched {
        size: 4,
        patience: 1000,
    }));
    driver.add('A', 2, 2);
    driver.scheduler.flush();
    assert_eq!(driver.trace(), ["A2*", "A1*"]);
    driver.add('B', 2, 1);
    assert_eq!(driver.step(), "-", "a request after the flush waits again");
}

#[test]
fn a_partial_static_batch_goes_after_its_timeout() {
    let mut driver = Driver::new(config(Policy::Batched {
        size: 4,
        patience: 1000,
    }));
    driver.now = 10;
    driver.add('A', 2, 1);
    let (next, ..) = driver.plan();
    assert_eq!(
        next,
        Next::Idle {
            wake_at: Some(1010)
        }
    );
    driver.now = 1010;
    assert_eq!(driver.trace(), ["A2*"]);
}

#[test]
fn dynamic_batching_runs_when_full_or_when_the_oldest_has_waited_its_window() {
    let mut driver = Driver::new(config(Policy::Batched {
        size: 2,
        patience: 50,
    }));
    driver.add('A', 2, 2);
    assert_eq!(driver.step(), "-");
    driver.now = 50;
    assert_eq!(driver.step(), "A2*");
    driver.add('B', 2, 1);
    driver.add('C', 2, 1);
    assert_eq!(
        driver.trace(),
        ["A1*", "B2* C2*"],
        "no request joins a running batch"
    );
}

#[test]
fn a_batch_takes_its_rows_at_once_and_its_prompts_share_the_budget() {
    let mut driver = Driver::new(config(Policy::Batched {
        size: 3,
        patience: 1000,
    }));
    driver.add('A', 6, 2);
    driver.add('B', 6, 2);
    driver.add('C', 6, 2);
    assert_eq!(driver.trace(), ["A6* B2", "A1* B4* C3", "B1* C3*", "C1*"]);
}

#[test]
fn long_prompts_are_computed_in_chunks_and_never_stall_a_decode() {
    let mut driver = Driver::new(config(CONTINUOUS));
    driver.add('A', 2, 6);
    driver.step();
    driver.add('B', 20, 2);
    assert_eq!(
        driver.trace(),
        ["A1* B7", "A1* B7", "A1* B6*", "A1* B1*", "A1*"]
    );
}

#[test]
fn a_decode_behind_a_prefill_keeps_its_token() {
    let mut driver = Driver::new(config(CONTINUOUS));
    driver.add('A', 20, 1);
    driver.add('B', 1, 3);
    assert_eq!(driver.trace(), ["A8", "A8", "A4* B1*", "B1*", "B1*"]);
}

#[test]
fn requests_wait_in_order_when_the_rows_are_taken() {
    let mut driver = Driver::new(config(CONTINUOUS));
    for name in 'A'..='F' {
        driver.add(name, 1, 2);
    }
    assert_eq!(
        driver.trace(),
        ["A1* B1* C1* D1*", "A1* B1* C1* D1*", "E1* F1*", "E1* F1*"]
    );
}
