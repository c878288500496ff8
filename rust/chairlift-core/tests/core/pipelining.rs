//! Two steps in flight: the next step is planned, and run, before the outcome of the one before is known.

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{
    Config, NewRequest, StepError,
    events::EndReason,
    plan::{LAST_SAMPLED, PlanView},
    policy::Policy,
    scheduler::{Next, StepId},
};

fn pipelined(policy: Policy) -> Config {
    Config {
        steps_in_flight: 2,
        ..config(policy)
    }
}

/// A step that runs on the device: its id and what it will have sampled.
struct Flight(StepId, Vec<i32>);

/// Plans and runs a step; `-` is idle.
fn launch(driver: &mut Driver) -> (String, Option<Flight>) {
    let (next, trace, plan) = driver.plan();
    let Next::Run(step) = next else {
        return (trace, None);
    };
    let tokens = driver.run(&plan);
    (trace, Some(Flight(step, tokens)))
}

fn land(driver: &mut Driver, flight: Option<Flight>) {
    let Flight(step, tokens) = flight.expect("a step is in flight");
    driver.update(step, &tokens);
    driver.collect();
    driver.check();
}

/// Keeps two steps in flight until nothing is left; returns their traces.
fn pipeline(driver: &mut Driver) -> Vec<String> {
    let mut traces = Vec::new();
    let mut ahead = None;
    loop {
        let (trace, flight) = launch(driver);
        driver.check();
        if ahead.is_some() {
            land(driver, ahead);
        } else if flight.is_none() {
            return traces;
        }
        traces.extend(flight.is_some().then_some(trace));
        ahead = flight;
    }
}

#[test]
fn a_decode_goes_on_from_a_token_that_is_not_known_yet() {
    let mut driver = Driver::new(pipelined(Policy::Continuous));
    let request = driver.add('A', 3, 3);
    let (first, one) = launch(&mut driver);
    let (_, second, plan) = driver.plan();
    assert_eq!((first.as_str(), second.as_str()), ("A3*", "A1*"));
    let view = PlanView::parse(&plan).expect("a plan");
    assert_eq!(view.input_ids, [LAST_SAMPLED]);
    let two = Some(Flight(StepId(2), driver.run(&plan)));
    assert_eq!(launch(&mut driver).0, "-", "two are in flight");
    land(&mut driver, one);
    let (third, three) = launch(&mut driver);
    assert_eq!(third, "A1*");
    land(&mut driver, two);
    assert_eq!(
        launch(&mut driver).0,
        "-",
        "its last token is in flight, and the last is never computed"
    );
    land(&mut driver, three);
    assert_eq!(
        driver.outcome(request).tokens,
        expected_tokens(&['A' as i32; 3], 3)
    );
    driver.assert_empty();
}

#[test]
fn what_follows_the_end_of_an_answer_is_dropped_and_its_row_comes_back_after() {
    let mut driver = Driver::new(pipelined(Policy::Continuous));
    let mut new = NewRequest::new(vec![7, 8], 9);
    let answer = expected_tokens(&[7, 8], 9);
    new.stop_token_ids = vec![answer[1]];
    let request = driver.add_request('A', new);
    assert_eq!(pipeline(&mut driver), ["A2*", "A1*", "A1*"]);
    let outcome = driver.outcome(request);
    assert_eq!(outcome.tokens, answer[..2], "the third was sampled too");
    assert_eq!(outcome.end, Some(EndReason::StopToken(answer[1])));
    driver.assert_empty();
}

/// Four blocks for A and B; both must answer as if alone.
fn share_four_blocks(a: (usize, usize), b: (usize, usize)) -> Vec<String> {
    let mut small = pipelined(Policy::Continuous);
    small.num_blocks = 1 + 4;
    let mut driver = Driver::new(small);
    let requests = [('A', a), ('B', b)]
        .map(|(name, (prompt, count))| (driver.add(name, prompt, count), name, prompt, count));
    let traces = pipeline(&mut driver);
    for (request, name, prompt, count) in requests {
        let expected = expected_tokens(&vec![name as i32; prompt], count);
        assert_eq!(driver.outcome(request).tokens, expected);
    }
    driver.assert_empty();
    traces
}

#[test]
fn what_a_step_in_flight_names_is_preempted_after_it() {
    let expected = ["A7* B1", "A1* B4*", "A1*", "A1*", "B6*"];
    assert_eq!(
        share_four_blocks((7, 4), (5, 2)),
        expected,
        "A needs a third block while a step names B, which loses its two as soon as the step has landed"
    );
}

#[test]
fn who_lacks_a_block_waits_while_a_step_in_flight_may_bring_it() {
    let expected = [
        "A7* B1", "A1* B2*", "A1* B1*", "A1*", "A1*", "A1*", "B1*", "B1*",
    ];
    assert_eq!(
        share_four_blocks((7, 6), (3, 4)),
        expected,
        "A took the fourth block; B keeps its first until A ends, and computes nothing again"
    );
}

#[test]
fn a_failed_step_takes_the_later_one_with_it() {
    let mut driver = Driver::new(pipelined(Policy::Continuous));
    let a = driver.add('A', 3, 4);
    let (_, one) = launch(&mut driver);
    let b = driver.add('B', 2, 2);
    let (second, two) = launch(&mut driver);
    assert_eq!(second, "A1* B2*");
    let (Flight(one, _), Flight(two, tokens)) = (one.expect("runs"), two.expect("runs"));
    let newer = driver.scheduler.fail(0, two, &[]);
    assert_eq!(
        newer,
        Err(StepError::UnknownStep(two.0)),
        "the oldest comes first"
    );
    driver
        .scheduler
        .fail(0, one, &[])
        .expect("it is the oldest");
    driver.check();
    assert!(driver.scheduler.update(0, two, &tokens).is_err());
    assert_eq!(
        pipeline(&mut driver),
        ["A3* B2*", "A1* B1*", "A1*", "A1*"],
        "both wait in their old order and start over"
    );
    for (request, prompt, count) in [(a, vec!['A' as i32; 3], 4), (b, vec!['B' as i32; 2], 2)] {
        assert_eq!(
            driver.outcome(request).tokens,
            expected_tokens(&prompt, count)
        );
    }
    driver.assert_empty();
}

#[test]
fn a_batch_is_open_until_its_last_step_has_landed() {
    let mut driver = Driver::new(pipelined(Policy::Batched {
        size: 1,
        patience: 1000,
    }));
    let request = driver.add('A', 2, 5);
    driver.add('B', 2, 1);
    let (_, one) = launch(&mut driver);
    driver.scheduler.abort(0, request, EndReason::Cancelled);
    assert_eq!(launch(&mut driver).0, "-", "A's row is not back");
    land(&mut driver, one);
    assert_eq!(pipeline(&mut driver), ["B2*"]);
    driver.assert_empty();
}
