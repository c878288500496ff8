//! How requests share memory, fail, end and are refused; `A5*` in a trace is five tokens of request A, `*` where its
//! next token is sampled.

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{
    NewRequest, RefusalReason,
    events::{EndReason, Failure},
    policy::Policy,
    scheduler::Next,
};

const CONTINUOUS: Policy = Policy::Continuous;

#[test]
fn a_preempted_request_gives_the_same_answer() {
    let mut small = config(CONTINUOUS);
    small.num_blocks = 1 + 5;
    let mut driver = Driver::new(small);
    let a = driver.add('A', 4, 12);
    let b = driver.add('B', 4, 12);
    driver.trace();
    assert!(
        driver.load().num_preemptions > 0,
        "five blocks are too few for both"
    );
    for (request, name) in [(a, 'A'), (b, 'B')] {
        assert_eq!(
            driver.outcome(request).tokens,
            expected_tokens(&[name as i32; 4], 12)
        );
    }
    driver.assert_empty();
}

#[test]
fn a_preempted_request_resumes_before_fresh_ones() {
    let mut small = config(CONTINUOUS);
    small.num_blocks = 1 + 4;
    let mut driver = Driver::new(small);
    driver.add('A', 7, 6);
    driver.add('B', 4, 6);
    driver.add('C', 8, 1);
    // Four blocks: in the third step A takes the last free one, B needs one too and is the youngest.
    let expected = [
        "A7* B1", "A1* B3*", "A1*", "A1*", "A1*", "A1*", "B5* C3", "B1* C5*", "B1*", "B1*", "B1*",
    ];
    assert_eq!(driver.trace(), expected);
}

#[test]
fn a_preempted_request_resumes_only_with_room_for_its_next_token_and_those_of_others() {
    let mut small = config(CONTINUOUS);
    small.num_blocks = 1 + 6;
    small.max_num_batched_tokens = 32;
    let mut driver = Driver::new(small);
    let with_credit = |name: char, num_prompt: usize| NewRequest {
        credit: Some(1),
        ..NewRequest::new(vec![name as i32; num_prompt], 4)
    };
    driver.add('A', 7, 12);
    let c = driver.add_request('C', with_credit('C', 3));
    let b = driver.add_request('B', with_credit('B', 7));
    assert_eq!(driver.step(), "A7* C3* B7*");
    // B and C have no more credit. For its fourth block A takes those of B.
    while driver.load().num_preemptions == 0 {
        driver.step();
    }
    driver.scheduler.abort(0, c, EndReason::Cancelled);
    driver.collect();
    assert_eq!(driver.load().num_free_blocks, 2, "as many as B had");
    driver.credit(b, 3);
    // With these B would be preempted again as soon as A needs its fifth.
    driver.trace();
    assert_eq!(driver.load().num_preemptions, 1);
    driver.assert_empty();
}

#[test]
fn equal_prompt_beginnings_are_computed_once() {
    let mut cached = config(CONTINUOUS);
    cached.prefix_cache = true;
    let mut driver = Driver::new(cached);
    let prompt: Vec<i32> = (0..11).collect();
    let first = driver.add_request('A', NewRequest::new(prompt.clone(), 2));
    assert_eq!(driver.trace(), ["A8", "A3*", "A1*"]);
    let second = driver.add_request('B', NewRequest::new(prompt.clone(), 2));
    assert_eq!(
        driver.trace(),
        ["B3*", "B1*"],
        "two full blocks of four are known"
    );
    assert_eq!(driver.outcome(second).tokens, expected_tokens(&prompt, 2));
    assert_eq!(driver.outcome(first).tokens, driver.outcome(second).tokens);
    driver.assert_empty();
}

#[test]
fn evicted_blocks_are_computed_again() {
    let mut cached = config(CONTINUOUS);
    cached.prefix_cache = true;
    let mut driver = Driver::new(cached);
    driver.add('A', 11, 1);
    driver.trace();
    assert_eq!(driver.scheduler.evict_cached(1), 1);
    driver.add('A', 11, 1);
    assert_eq!(
        driver.trace(),
        ["A7*"],
        "the tail of a prefix is evicted first"
    );
    assert_eq!(driver.scheduler.evict_cached(9), 2);
    driver.assert_empty();
}

#[test]
fn the_last_prompt_token_is_always_computed() {
    let mut cached = config(CONTINUOUS);
    cached.prefix_cache = true;
    let mut driver = Driver::new(cached);
    driver.add('A', 8, 1);
    driver.trace();
    driver.add('A', 8, 1);
    assert_eq!(
        driver.trace(),
        ["A4*"],
        "only one of two full blocks may be a hit"
    );
}

#[test]
fn a_block_is_known_only_after_its_step_succeeded() {
    let mut cached = config(CONTINUOUS);
    cached.prefix_cache = true;
    let mut driver = Driver::new(cached);
    let request = driver.add('A', 8, 1);
    driver.failing_step(&[request]);
    assert_eq!(driver.load().num_cached_blocks, 0);
    driver.add('B', 1, 1);
    driver.trace();
    driver.assert_empty();
}

#[test]
fn a_failed_step_is_computed_again_and_only_the_guilty_fail() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let a = driver.add('A', 3, 4);
    let b = driver.add('B', 3, 4);
    driver.step();
    assert_eq!(driver.failing_step(&[a]), "A1* B1*");
    assert_eq!(driver.trace(), ["B4*", "B1*", "B1*"]);
    assert_eq!(
        driver.outcome(a).end,
        Some(EndReason::Failed(Failure::StepFailed))
    );
    assert_eq!(
        driver.outcome(b).tokens,
        expected_tokens(&['B' as i32; 3], 4)
    );
    driver.assert_empty();
}

#[test]
fn a_row_that_is_not_finite_fails_alone() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let a = driver.add('A', 2, 2);
    let b = driver.add('B', 2, 2);
    let (next, _, plan) = driver.plan();
    let Next::Run(step) = next else {
        panic!("there is work")
    };
    let mut tokens = driver.run(&plan);
    tokens[0] = -1;
    driver.update(step, &tokens);
    driver.trace();
    assert_eq!(
        driver.outcome(a).end,
        Some(EndReason::Failed(Failure::NumericFault))
    );
    assert_eq!(
        driver.outcome(b).tokens,
        expected_tokens(&['B' as i32; 2], 2)
    );
    driver.assert_empty();
}

#[test]
fn abort_works_in_every_state_and_once() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let running = driver.add('A', 2, 9);
    let mid_chunk = driver.add('B', 30, 9);
    driver.step();
    let waiting = driver.add('C', 2, 9);
    for request in [running, mid_chunk, waiting] {
        assert!(driver.scheduler.abort(0, request, EndReason::Cancelled));
        assert!(
            !driver.scheduler.abort(0, request, EndReason::Cancelled),
            "it has ended"
        );
    }
    driver.collect();
    assert_eq!(driver.step(), "-");
    driver.assert_empty();
}

#[test]
fn what_a_step_in_flight_names_is_released_when_the_step_ends() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let request = driver.add('A', 4, 9);
    let (next, _, plan) = driver.plan();
    let Next::Run(step) = next else {
        panic!("there is work")
    };
    driver.scheduler.abort(0, request, EndReason::Cancelled);
    driver.check();
    assert_eq!(driver.load().num_free_blocks, driver.load().num_blocks - 1);
    let tokens = driver.run(&plan);
    driver.update(step, &tokens);
    driver.collect();
    let tokens = &driver.outcome(request).tokens;
    assert!(tokens.is_empty(), "nothing follows the end");
    driver.assert_empty();
}

#[test]
fn a_step_that_is_not_in_flight_is_refused_and_changes_nothing() {
    let mut driver = Driver::new(config(CONTINUOUS));
    driver.add('A', 4, 1);
    let (next, _, plan) = driver.plan();
    let Next::Run(step) = next else {
        panic!("there is work")
    };
    let tokens = driver.run(&plan);
    for sampled in [&[][..], &[tokens[0], tokens[0]]] {
        assert!(driver.scheduler.update(0, step, sampled).is_err());
    }
    driver.update(step, &tokens);
    assert!(driver.scheduler.fail(0, step, &[]).is_err(), "it has ended");
    driver.collect();
    driver.assert_empty();
}

#[test]
fn stop_tokens_stop_strings_and_limits_end_an_answer() {
    let answer = expected_tokens(&[7, 8], 8);
    let end = |change: &dyn Fn(&mut NewRequest)| {
        let mut driver = Driver::new(config(CONTINUOUS));
        let mut new = NewRequest::new(vec![7, 8], 8);
        new.text.detokenize = true;
        change(&mut new);
        let request = driver.add_request('A', new);
        driver.trace();
        driver.assert_empty();
        driver.outcome(request).clone()
    };
    let all = end(&|_| ());
    assert_eq!(
        (all.tokens, all.end),
        (answer.clone(), Some(EndReason::Length))
    );
    let token = end(&|new| new.stop_token_ids = vec![answer[2]]);
    assert_eq!(
        (&token.tokens[..], token.end),
        (&answer[..3], Some(EndReason::StopToken(answer[2])))
    );
    assert_eq!(
        token.text,
        format!("{} {} ", answer[0], answer[1]),
        "its text is left out"
    );
    let stop = format!("{} {}", answer[1], answer[2]);
    let string = end(&|new| new.text.stop = vec![stop.clone()]);
    assert_eq!(
        (string.text, string.end),
        (format!("{} ", answer[0]), Some(EndReason::StopString(stop)))
    );
    let later = end(&|new| {
        new.stop_token_ids = vec![answer[2]];
        new.min_tokens = 4;
    });
    assert!(later.tokens.len() >= 4, "no stop before min_tokens");
}

#[test]
fn the_context_ends_an_answer() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let request = driver.add('A', 60, 100);
    driver.trace();
    let outcome = driver.outcome(request);
    assert_eq!(
        (outcome.tokens.len(), outcome.end.clone()),
        (4, Some(EndReason::Length))
    );
}

#[test]
fn a_prompt_with_one_token_behind_it_may_fill_the_context() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let request = driver.add('A', 64, 1);
    driver.trace();
    let outcome = driver.outcome(request);
    assert_eq!(
        (outcome.tokens.len(), outcome.end.clone()),
        (1, Some(EndReason::Length))
    );
}

#[test]
fn requests_that_can_never_run_are_refused_with_the_field_named() {
    let mut small = config(CONTINUOUS);
    small.num_blocks = 1 + 4;
    let mut driver = Driver::new(small);
    let mut refusal = |new: NewRequest| {
        let refusal = driver.scheduler.add(0, new).expect_err("it is refused");
        (refusal.reason, refusal.field)
    };
    let bad = RefusalReason::BadParameter;
    assert_eq!(refusal(NewRequest::new(vec![], 1)), (bad, "prompt"));
    assert_eq!(refusal(NewRequest::new(vec![1, -1], 1)), (bad, "token_ids"));
    assert_eq!(
        refusal(NewRequest::new(vec![crate::driver::VOCAB as i32], 1)),
        (bad, "token_ids")
    );
    assert_eq!(
        refusal(NewRequest::new(vec![1], 0)),
        (bad, "stopping.max_tokens")
    );
    assert_eq!(
        refusal(NewRequest::new(vec![1; 64], 2)),
        (RefusalReason::PromptTooLong, "prompt")
    );
    assert_eq!(
        refusal(NewRequest::new(vec![1; 16], 2)),
        (RefusalReason::KvCapacity, "prompt")
    );
    driver.assert_empty();
}

#[test]
fn a_full_queue_refuses_and_an_abort_makes_room() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let requests: Vec<_> = (0..16).map(|_| driver.add('A', 1, 1)).collect();
    let refusal = driver
        .scheduler
        .add(0, NewRequest::new(vec![1], 1))
        .expect_err("it is full");
    assert_eq!(refusal.reason, RefusalReason::QueueFull);
    driver.scheduler.abort(0, requests[7], EndReason::Cancelled);
    assert!(driver.scheduler.add(0, NewRequest::new(vec![1], 1)).is_ok());
}

#[test]
fn deadlines_end_who_waits_too_long_and_who_runs_too_long() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let mut slow = NewRequest::new(vec![1], 50);
    slow.deadline = Some(100);
    slow.queue_deadline = Some(10);
    let running = driver.add_request('A', slow);
    driver.step();
    for name in ['B', 'C', 'D'] {
        let mut first = NewRequest::new(vec![1], 9);
        first.priority = 4;
        driver.add_request(name, first);
    }
    let mut late = NewRequest::new(vec![1], 1);
    late.queue_deadline = Some(50);
    let waiting = driver.add_request('E', late);
    driver.step();
    driver.now = 50;
    driver.step();
    assert_eq!(
        driver.outcome(waiting).end,
        Some(EndReason::Failed(Failure::QueueTimeout))
    );
    assert_eq!(
        driver.outcome(running).end,
        None,
        "its queue deadline passed while it ran"
    );
    driver.now = 100;
    driver.step();
    assert_eq!(driver.outcome(running).end, Some(EndReason::TimeLimit));
    assert!(
        !driver.outcome(running).tokens.is_empty(),
        "what there is stays"
    );
    driver.trace();
    driver.assert_empty();
}
