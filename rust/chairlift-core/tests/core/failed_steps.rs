//! A step that fails takes what was computed, and nothing else: no row, no place in any order.

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{
    Config,
    events::{EndReason, EventKind, Events, Failure},
    policy::Policy,
};

fn small(num_blocks: usize) -> Config {
    Config {
        num_blocks: 1 + num_blocks,
        max_num_batched_tokens: 32,
        ..config(Policy::Continuous)
    }
}

#[test]
fn a_failed_step_is_no_preemption() {
    let mut driver = Driver::new(small(64));
    let failing = driver.add('A', 3, 4);
    let innocent = driver.add('B', 3, 4);
    driver.step();
    assert_eq!(driver.failing_step(&[failing]), "A1* B1*");
    let load = driver.load();
    assert_eq!((load.num_preemptions, load.num_waiting), (0, 0));
    assert_eq!(load.num_running, 1, "B keeps its row");
    assert_eq!(driver.step(), "B4*");
    assert_eq!(
        driver.load().num_recomputed_tokens,
        4,
        "a token of the failed step counts as computed"
    );
    assert_eq!(driver.step(), "B1*");
    let (_, _, plan) = driver.plan();
    let tokens = driver.run(&plan);
    driver.update(chairlift_core::scheduler::StepId(5), &tokens);
    let mut events = Events::default();
    driver.scheduler.take_events(&mut events);
    let Some(EventKind::Ended(end)) = events.list.last().map(|event| &event.kind) else {
        panic!("B ends");
    };
    let end = &events.ends[*end];
    assert_eq!(
        (end.reason.clone(), end.stats.num_preemptions),
        (EndReason::Length, 0)
    );
    assert_eq!(
        driver.outcome(failing).end,
        Some(EndReason::Failed(Failure::StepFailed))
    );
    assert_ne!(innocent, failing);
    driver.assert_empty();
}

#[test]
fn a_request_of_a_failed_step_is_spared_by_no_later_preemption() {
    // Of A and B a step fails, then C joins; B loses less for each of its blocks than C.
    let mut driver = Driver::new(small(7));
    driver.add('A', 8, 12);
    driver.add('B', 5, 12);
    driver.failing_step(&[]);
    assert_eq!(driver.step(), "A8* B5*");
    driver.add('C', 7, 6);
    assert_eq!(driver.step(), "A1* B1* C7*");
    assert_eq!(driver.step(), "A1* B1* C1*");
    assert_eq!(driver.load().num_preemptions, 0);
    // All seven blocks are taken: A has three, B and C have two.
    assert_eq!(driver.step(), "A1* B1*");
    driver.trace();
    driver.assert_empty();
}

#[test]
fn a_request_of_a_failed_step_goes_before_no_other_tenant() {
    let mut driver = Driver::new(Config {
        max_num_seqs: 1,
        ..small(64)
    });
    let a = driver.add('A', 3, 2);
    driver.add('B', 3, 1);
    driver.failing_step(&[]);
    assert_eq!(driver.load().num_waiting, 1, "A runs, B waits");
    assert_eq!(driver.trace(), ["A3*", "A1*", "B3*"]);
    assert_eq!(
        driver.outcome(a).tokens,
        expected_tokens(&['A' as i32; 3], 2)
    );
    driver.assert_empty();
}
