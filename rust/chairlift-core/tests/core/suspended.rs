//! Requests that may not go on, for want of credit or paused: they stand still, and give way.

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{
    NewRequest,
    events::{EndReason, Failure},
    plan::Plan,
    policy::Policy,
    scheduler::{Change, Next},
};
use proptest::prelude::*;

const CONTINUOUS: Policy = Policy::Continuous;

fn with_credit(name: char, num_prompt: usize, max_tokens: usize, credit: u64) -> NewRequest {
    let mut new = NewRequest::new(vec![name as i32; num_prompt], max_tokens);
    new.credit = Some(credit);
    new
}

#[test]
fn a_request_stands_still_without_credit_and_its_neighbours_go_on() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let a = driver.add_request('A', with_credit('A', 3, 5, 2));
    driver.add('B', 1, 4);
    assert_eq!(driver.trace(), ["A3* B1*", "A1* B1*", "B1*", "B1*"]);
    let load = driver.load();
    assert_eq!(
        (load.num_running, load.num_running_suspended),
        (1, 1),
        "it keeps its row"
    );
    driver.credit(a, 2);
    assert_eq!(driver.trace(), ["A1*", "A1*"]);
    driver.credit(a, u64::MAX);
    assert_eq!(driver.trace(), ["A1*"]);
    assert_eq!(
        driver.outcome(a).tokens,
        expected_tokens(&['A' as i32; 3], 5)
    );
    driver.assert_empty();
}

#[test]
fn without_any_credit_nothing_is_computed() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let a = driver.add_request('A', with_credit('A', 3, 2, 0));
    driver.add('B', 1, 1);
    assert_eq!(driver.trace(), ["B1*"]);
    assert_eq!(
        (
            driver.load().num_waiting,
            driver.load().num_waiting_suspended
        ),
        (1, 1)
    );
    driver.credit(a, 9);
    assert_eq!(driver.trace(), ["A3*", "A1*"]);
    driver.assert_empty();
}

#[test]
fn a_paused_request_gets_its_steps_in_flight_and_no_more() {
    let mut pipelined = config(CONTINUOUS);
    pipelined.steps_in_flight = 2;
    let mut driver = Driver::new(pipelined);
    let a = driver.add('A', 2, 9);
    let (Next::Run(first), _, plan) = driver.plan() else {
        panic!("a step")
    };
    let sampled = driver.run(&plan);
    let (Next::Run(second), _, plan) = driver.plan() else {
        panic!("a step")
    };
    let sampled_next = driver.run(&plan);
    driver.pause(a, true);
    driver.update(first, &sampled);
    assert_eq!(driver.plan().1, "-", "nothing is planned after the pause");
    driver.update(second, &sampled_next);
    driver.collect();
    assert_eq!(driver.outcome(a).tokens.len(), 2);
    driver.pause(a, false);
    driver.trace();
    assert_eq!(
        driver.outcome(a).tokens,
        expected_tokens(&['A' as i32; 2], 9)
    );
    driver.assert_empty();
}

#[test]
fn credit_counts_the_tokens_of_steps_in_flight() {
    let mut pipelined = config(CONTINUOUS);
    pipelined.steps_in_flight = 2;
    let mut driver = Driver::new(pipelined);
    driver.add_request('A', with_credit('A', 2, 9, 1));
    let (next, trace, _) = driver.plan();
    assert!(matches!(next, Next::Run(_)));
    assert_eq!(trace, "A2*");
    assert_eq!(driver.plan().1, "-", "the one token is on its way");
}

#[test]
fn a_running_request_takes_the_blocks_of_the_youngest_suspended_one() {
    let mut small = config(CONTINUOUS);
    small.num_blocks = 1 + 4;
    let mut driver = Driver::new(small);
    let a = driver.add('A', 2, 4);
    let b = driver.add('B', 2, 4);
    let c = driver.add('C', 4, 12);
    assert_eq!(driver.step(), "A2* B2* C4*");
    driver.pause(a, true);
    driver.pause(b, true);
    // C needs its third block at the sixth of these: B, the younger, has lost its own then, and A keeps its own.
    let trace: Vec<_> = (0..5).map(|_| driver.step()).collect();
    assert_eq!(trace, ["C1*"; 5]);
    assert_eq!(
        (driver.load().num_running, driver.load().num_waiting),
        (2, 1)
    );
    driver.pause(b, false);
    driver.pause(a, false);
    driver.trace();
    for (request, name, num_prompt, count) in [(a, 'A', 2, 4), (b, 'B', 2, 4), (c, 'C', 4, 12)] {
        assert_eq!(
            driver.outcome(request).tokens,
            expected_tokens(&vec![name as i32; num_prompt], count)
        );
    }
    driver.assert_empty();
}

#[test]
fn suspended_requests_give_their_rows_to_those_who_wait() {
    let mut narrow = config(CONTINUOUS);
    narrow.max_num_seqs = 2;
    let mut driver = Driver::new(narrow);
    let a = driver.add_request('A', with_credit('A', 2, 3, 1));
    driver.add_request('B', with_credit('B', 2, 3, 1));
    driver.step();
    driver.add('C', 1, 2);
    assert_eq!(driver.step(), "C1*");
    assert_eq!(
        driver.load().num_running,
        2,
        "B, the younger, made room, and A need not"
    );
    driver.add('D', 1, 1);
    driver.credit(a, 9);
    // A goes on in its row at once; D waits for C's.
    assert_eq!(driver.trace(), ["A1* C1*", "A1* D1*"]);
}

#[test]
fn a_suspended_request_keeps_its_blocks_from_a_prompt_that_would_not_fit_even_so() {
    let mut small = config(CONTINUOUS);
    small.num_blocks = 1 + 4;
    let mut driver = Driver::new(small);
    let a = driver.add_request('A', with_credit('A', 4, 8, 1));
    driver.add('B', 5, 3);
    assert_eq!(driver.step(), "A4* B4");
    // Three blocks are A's and B's, and C needs all four.
    driver.add('C', 14, 1);
    assert_eq!(driver.step(), "B1*");
    assert_eq!(driver.load().num_preemptions, 0);
    driver.credit(a, 9);
    driver.trace();
    driver.assert_empty();
}

#[test]
fn all_suspended_requests_together_block_nobody() {
    for policy in [
        CONTINUOUS,
        Policy::Batched {
            size: 2,
            patience: 1000,
        },
        Policy::Batched {
            size: 2,
            patience: 0,
        },
    ] {
        let mut narrow = config(policy);
        narrow.max_num_seqs = 2;
        narrow.num_blocks = 1 + 4;
        let mut driver = Driver::new(narrow);
        let suspended: Vec<_> = ['A', 'B']
            .map(|name| driver.add_request(name, with_credit(name, 4, 3, 1)))
            .into();
        assert_eq!(driver.trace(), ["A4* B4*"]);
        driver.add('C', 8, 2);
        driver.add('D', 4, 1);
        driver.trace();
        assert_eq!(driver.load().num_waiting, 2, "A and B made room");
        for request in suspended {
            driver.credit(request, 2);
        }
        driver.trace();
        driver.assert_empty();
    }
}

#[test]
fn a_suspended_row_belongs_to_its_batch_while_others_of_it_run() {
    let mut driver = Driver::new(config(Policy::Batched {
        size: 2,
        patience: 1000,
    }));
    let a = driver.add_request('A', with_credit('A', 1, 9, 1));
    driver.add('B', 1, 4);
    assert_eq!(driver.step(), "A1* B1*");
    driver.add('C', 1, 1);
    driver.add('D', 1, 1);
    assert_eq!(
        driver.trace(),
        ["B1*", "B1*", "B1*", "C1* D1*"],
        "the next batch comes when every request of this one is suspended"
    );
    driver.scheduler.abort(driver.now, a, EndReason::Cancelled);
    driver.collect();
    driver.assert_empty();
}

#[test]
fn a_request_suspended_for_ever_ends_by_its_deadlines() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let mut new = with_credit('A', 2, 9, 1);
    new.deadline = Some(100);
    let seated = driver.add_request('A', new);
    let mut new = with_credit('B', 2, 9, 0);
    new.queue_deadline = Some(70);
    let outside = driver.add_request('B', new);
    assert_eq!(driver.step(), "A2*");
    let wakes = |driver: &mut Driver| driver.scheduler.schedule(driver.now, &mut Plan::default());
    assert_eq!(wakes(&mut driver), Next::Idle { wake_at: Some(70) });
    driver.now = 70;
    assert_eq!(wakes(&mut driver), Next::Idle { wake_at: Some(100) });
    driver.now = 100;
    assert_eq!(wakes(&mut driver), Next::Idle { wake_at: None });
    driver.collect();
    assert_eq!(
        driver.outcome(outside).end,
        Some(EndReason::Failed(Failure::QueueTimeout))
    );
    assert_eq!(driver.outcome(seated).end, Some(EndReason::TimeLimit));
    assert_eq!(driver.outcome(seated).tokens.len(), 1);
    driver.assert_empty();
}

#[test]
fn a_suspended_request_can_be_cancelled_with_and_without_a_row() {
    let mut narrow = config(CONTINUOUS);
    narrow.max_num_seqs = 2;
    let mut driver = Driver::new(narrow);
    let requests: Vec<_> = ['A', 'B', 'C']
        .map(|name| driver.add_request(name, with_credit(name, 6, 9, 1)))
        .into();
    driver.trace();
    assert_eq!(
        (driver.load().num_running, driver.load().num_waiting),
        (2, 1)
    );
    for request in requests {
        driver
            .scheduler
            .abort(driver.now, request, EndReason::Cancelled);
        driver.collect();
        driver.check();
        assert_eq!(driver.outcome(request).end, Some(EndReason::Cancelled));
    }
    driver.assert_empty();
}

proptest! {
    #[test]
    fn an_answer_does_not_depend_on_when_it_was_held_up(
        gifts in prop::collection::vec((0..3_usize, 0..3_u64, any::<bool>(), 0..3_usize), 0..40),
        num_blocks in 6..12_usize,
        max_num_seqs in 1..4_usize,
    ) {
        let mut small = config(CONTINUOUS);
        small.num_blocks = 1 + num_blocks;
        small.max_num_seqs = max_num_seqs;
        let mut driver = Driver::new(small);
        let requests = ['A', 'B', 'C']
            .map(|name| driver.add_request(name, with_credit(name, 5, 12, 0)));
        let mut given = [0; 3];
        for (i, tokens, paused, steps) in gifts {
            given[i] += tokens;
            let gift = Change { credit: tokens, paused: Some(paused), ..Change::default() };
            if driver.outcome(requests[i]).end.is_none() {
                driver.change(requests[i], gift);
            }
            for _ in 0..steps {
                driver.step();
                driver.check();
            }
            for (request, given) in requests.iter().zip(given) {
                prop_assert!(driver.outcome(*request).tokens.len() as u64 <= given);
            }
        }
        for request in requests {
            if driver.outcome(request).end.is_none() {
                let all = Change { credit: u64::MAX, paused: Some(false), ..Change::default() };
                driver.change(request, all);
            }
        }
        driver.trace();
        for (request, name) in requests.iter().zip(['A', 'B', 'C']) {
            prop_assert_eq!(&driver.outcome(*request).tokens, &expected_tokens(&[name as i32; 5], 12));
        }
        driver.assert_empty();
    }
}
