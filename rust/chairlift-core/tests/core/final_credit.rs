//! The last credit: a request that gets no more ends when it is spent, in whatever state it is.

use crate::driver::{Driver, config, expected_tokens, token_table};
use chairlift_core::{
    NewRequest, RequestId, Scheduler,
    events::{EndReason, EventKind, Events},
    plan::{Plan, PlanView},
    policy::Policy,
    scheduler::{Change, Next, Stopping},
};
use proptest::prelude::*;

fn with_credit(name: char, credit: u64) -> NewRequest {
    let mut new = NewRequest::new(vec![name as i32; 2], 6);
    new.credit = Some(credit);
    new
}

fn last(credit: u64) -> Change {
    Change {
        credit,
        credit_is_final: true,
        ..Change::default()
    }
}

fn end_of(driver: &Driver, request: RequestId) -> (usize, Option<EndReason>) {
    let outcome = driver.outcome(request);
    let end = outcome.end.clone();
    (outcome.tokens.len(), end)
}

#[test]
fn an_answer_ends_with_the_last_token_that_is_paid_for() {
    let mut driver = Driver::new(config(Policy::Continuous));
    let a = driver.add_request('A', with_credit('A', 1));
    driver.change(a, last(2));
    assert_eq!(driver.trace(), ["A2*", "A1*", "A1*"]);
    assert_eq!(end_of(&driver, a), (3, Some(EndReason::Length)));
    assert_eq!(
        driver.outcome(a).tokens,
        expected_tokens(&['A' as i32; 2], 3)
    );
    driver.assert_empty();
}

#[test]
fn an_answer_that_has_that_token_ends_at_once() {
    let mut driver = Driver::new(config(Policy::Continuous));
    let a = driver.add_request('A', with_credit('A', 2));
    assert_eq!(driver.trace(), ["A2*", "A1*"]);
    driver.change(a, last(0));
    assert_eq!(end_of(&driver, a), (2, Some(EndReason::Length)));
    driver.assert_empty();
}

#[test]
fn an_answer_for_which_nothing_is_paid_is_cancelled_without_a_step() {
    let mut driver = Driver::new(config(Policy::Continuous));
    let a = driver.add_request('A', with_credit('A', 0));
    driver.change(a, last(0));
    assert_eq!(end_of(&driver, a), (0, Some(EndReason::Cancelled)));
    assert_eq!(driver.step(), "-");
    driver.assert_empty();
}

#[test]
fn a_token_that_is_on_its_way_is_the_last() {
    let mut pipelined = config(Policy::Continuous);
    pipelined.steps_in_flight = 2;
    let mut driver = Driver::new(pipelined);
    let a = driver.add_request('A', with_credit('A', 1));
    let (Next::Run(step), _, plan) = driver.plan() else {
        panic!("a step")
    };
    let sampled = driver.run(&plan);
    driver.change(a, last(0));
    assert_eq!(end_of(&driver, a), (0, None), "it is paid for");
    driver.update(step, &sampled);
    driver.collect();
    assert_eq!(end_of(&driver, a), (1, Some(EndReason::Length)));
    driver.assert_empty();
}

#[test]
fn a_request_without_a_limit_of_credit_does_not_notice() {
    let mut driver = Driver::new(config(Policy::Continuous));
    let a = driver.add_request('A', NewRequest::new(vec![1; 2], 4));
    driver.change(a, last(0));
    driver.trace();
    assert_eq!(end_of(&driver, a), (4, Some(EndReason::Length)));
    driver.assert_empty();
}

#[test]
fn a_higher_limit_of_tokens_does_not_outlast_the_last_credit() {
    let mut driver = Driver::new(config(Policy::Continuous));
    let a = driver.add_request('A', with_credit('A', 3));
    let raise = Change {
        stopping: Some(Stopping {
            max_tokens: usize::MAX,
            ..Stopping::default()
        }),
        ..last(0)
    };
    driver.change(a, raise);
    driver.trace();
    assert_eq!(end_of(&driver, a), (3, Some(EndReason::Length)));
    driver.assert_empty();
}

#[test]
fn a_paused_request_ends_when_it_goes_on_and_its_credit_is_spent() {
    let mut driver = Driver::new(config(Policy::Continuous));
    let a = driver.add_request('A', with_credit('A', 2));
    driver.step();
    driver.pause(a, true);
    driver.change(a, last(0));
    assert_eq!(driver.step(), "-");
    assert_eq!(end_of(&driver, a), (1, None), "one token is paid for");
    driver.pause(a, false);
    driver.trace();
    assert_eq!(end_of(&driver, a), (2, Some(EndReason::Length)));
    driver.assert_empty();
}

/// Runs until nothing is left to run; gives how each answer ended, and with how many tokens of output.
fn finish(scheduler: &mut Scheduler) -> Vec<(u32, EndReason, usize)> {
    let (mut plan, mut events, mut ends) = (Plan::default(), Events::default(), Vec::new());
    let mut buffer = vec![0; Plan::capacity(scheduler.config())];
    loop {
        let next = scheduler.schedule(0, &mut plan);
        if let Next::Run(step) = next {
            let length = plan.encode(&mut buffer);
            let view = PlanView::parse(&buffer[..length]).expect("a plan");
            let tokens = vec![5; view.sample_rows.len()];
            assert_eq!(scheduler.update(0, step, &tokens), Ok(()));
        }
        assert_eq!(scheduler.check_invariants(), Ok(()));
        scheduler.take_events(&mut events);
        for event in &events.list {
            if let EventKind::Ended(end) = event.kind {
                let end = &events.ends[end];
                ends.push((event.index, end.reason.clone(), end.stats.output_tokens));
            }
        }
        if !matches!(next, Next::Run(_)) {
            return ends;
        }
    }
}

#[test]
fn an_answer_that_waits_for_the_prompt_of_another_may_end_alone() {
    let mut scheduler =
        Scheduler::new(config(Policy::Continuous), token_table()).expect("valid settings");
    let mut new = with_credit('A', 2);
    new.num_sequences = 3;
    let request = scheduler.add(0, new).expect("it is taken").request;
    assert_eq!(scheduler.change(0, request, last(0)), Ok(()));
    assert_eq!(scheduler.load().num_waiting, 2);
    let mut ends = finish(&mut scheduler);
    ends.sort_by_key(|end| end.0);
    assert_eq!(
        ends,
        [
            (0, EndReason::Length, 1),
            (1, EndReason::Length, 1),
            (2, EndReason::Cancelled, 0)
        ]
    );
}

proptest! {
    #[test]
    fn answers_get_as_many_tokens_as_were_paid_for(
        num_sequences in 1..5_usize,
        first in 0..9_u64,
        gifts in prop::collection::vec(0..5_u64, 0..6),
        num_blocks in 8..20_usize,
    ) {
        let mut small = config(Policy::Continuous);
        (small.num_blocks, small.max_num_seqs) = (1 + num_blocks, 4);
        let mut scheduler = Scheduler::new(small, token_table()).expect("valid settings");
        let mut new = with_credit('A', first);
        (new.num_sequences, new.max_tokens) = (num_sequences, 29);
        let request = scheduler.add(0, new).expect("it is taken").request;
        for &credit in &gifts {
            let more = Change { credit, ..Change::default() };
            prop_assert_eq!(scheduler.change(0, request, more), Ok(()));
            prop_assert_eq!(finish(&mut scheduler), []);
        }
        prop_assert_eq!(scheduler.change(0, request, last(0)), Ok(()));
        let ends = finish(&mut scheduler);
        let paid = first + gifts.iter().sum::<u64>();
        prop_assert_eq!(ends.len(), num_sequences);
        prop_assert_eq!(ends.iter().map(|end| end.2 as u64).sum::<u64>(), paid);
        for (_, reason, num_tokens) in ends {
            let expected = if num_tokens > 0 { EndReason::Length } else { EndReason::Cancelled };
            prop_assert_eq!(reason, expected);
        }
        let load = scheduler.load();
        prop_assert_eq!((load.num_running, load.num_waiting), (0, 0));
        prop_assert_eq!(load.num_free_blocks, load.num_blocks);
    }
}
