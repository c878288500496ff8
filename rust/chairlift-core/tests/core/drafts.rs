//! Drafts: right ones save steps, wrong ones cost nothing but their step, and no other request notices either.

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{
    Config, KvGroup, NewRequest, RequestId, StepError,
    events::{EndReason, Failure},
    plan::PlanView,
    policy::Policy,
    scheduler::{MAX_DRAFTS, Next},
};

const WRONG: i32 = 999;

pub(crate) fn answer(name: char, num_prompt: usize, count: usize) -> Vec<i32> {
    expected_tokens(&vec![name as i32; num_prompt], count)
}

/// A decodes: its prompt of four tokens, a block, is computed, and the first token of its answer is there.
pub(crate) fn decoding(config: Config, max_tokens: usize) -> (Driver, RequestId) {
    let mut driver = Driver::new(config);
    let a = driver.add('A', 4, max_tokens);
    assert_eq!(driver.step(), "A4*");
    (driver, a)
}

pub(crate) fn continuous() -> Config {
    config(Policy::Continuous)
}

#[test]
fn right_drafts_take_one_step() {
    let (mut driver, a) = decoding(continuous(), 12);
    let tokens = answer('A', 4, 12);
    assert!(driver.scheduler.draft(a, 0, &tokens[1..6]));
    assert_eq!(driver.step(), "A6*");
    assert_eq!(driver.outcome(a).tokens, tokens[..7]);
    driver.check();
    assert_eq!(driver.trace(), vec!["A1*"; 5]);
    assert_eq!(driver.outcome(a).tokens, tokens);
    driver.assert_empty();
}

#[test]
fn a_row_with_drafts_samples_after_each_of_them() {
    let (mut driver, a) = decoding(continuous(), 12);
    assert!(driver.scheduler.draft(a, 0, &[7, 8]));
    let (_, _, plan) = driver.plan();
    let view = PlanView::parse(&plan).expect("a plan");
    assert_eq!((view.num_tokens, view.draft_counts), (&[3][..], &[2][..]));
    assert_eq!(
        (&view.input_ids[1..], view.sample_rows),
        (&[7, 8][..], &[0, 1, 2][..])
    );
}

#[test]
fn tokens_after_a_wrong_draft_are_dropped() {
    let (mut driver, a) = decoding(continuous(), 12);
    let tokens = answer('A', 4, 12);
    let drafts = [tokens[1], WRONG, tokens[3], tokens[4]];
    assert!(driver.scheduler.draft(a, 0, &drafts));
    assert_eq!(driver.step(), "A5*");
    assert_eq!(driver.outcome(a).tokens, tokens[..3]);
    driver.trace();
    assert_eq!(driver.outcome(a).tokens, tokens);
    driver.assert_empty();
}

#[test]
fn blocks_that_only_wrong_drafts_needed_are_given_back() {
    let (mut driver, a) = decoding(continuous(), 12);
    assert!(driver.scheduler.draft(a, 0, &[WRONG; 7]));
    let (next, trace, plan) = driver.plan();
    assert_eq!(trace, "A8*");
    let used = |driver: &Driver| driver.load().num_blocks - driver.load().num_free_blocks;
    assert_eq!(used(&driver), 3);
    let Next::Run(step) = next else {
        unreachable!("a step is planned")
    };
    let sampled = driver.run(&plan);
    driver.update(step, &sampled);
    assert_eq!((used(&driver), driver.load().num_kv_tokens), (2, 5));
    driver.check();
}

#[test]
fn drafts_take_what_a_step_leaves_of_its_budget() {
    let (mut driver, a) = decoding(continuous(), 12);
    let tokens = answer('A', 4, 12);
    assert!(driver.scheduler.draft(a, 0, &tokens[1..9]));
    driver.add('B', 4, 2);
    assert_eq!(driver.step(), "A4* B4*");
    assert_eq!(driver.outcome(a).tokens, tokens[..5]);
    assert!(driver.scheduler.draft(a, 0, &tokens[5..9]));
    driver.add('C', 30, 2);
    assert_eq!(driver.step(), "A1* B1* C6");
    assert_eq!(driver.outcome(a).tokens, tokens[..6]);
}

#[test]
fn drafts_are_used_up_by_the_next_step() {
    let (mut driver, a) = decoding(continuous(), 12);
    assert!(driver.scheduler.draft(a, 0, &[WRONG]));
    assert_eq!(driver.step(), "A2*");
    assert_eq!(driver.step(), "A1*");
}

#[test]
fn drafts_wait_for_a_paused_answer() {
    let (mut driver, a) = decoding(continuous(), 12);
    let tokens = answer('A', 4, 12);
    assert!(driver.scheduler.draft(a, 0, &tokens[1..3]));
    driver.pause(a, true);
    assert_eq!(driver.step(), "-");
    driver.pause(a, false);
    assert_eq!(driver.step(), "A3*");
    assert_eq!(driver.outcome(a).tokens, tokens[..4]);
}

#[test]
fn no_more_drafts_are_computed_than_can_be_accepted() {
    let (mut driver, a) = decoding(continuous(), 4);
    let tokens = answer('A', 4, 8);
    assert!(driver.scheduler.draft(a, 0, &tokens[1..8]));
    assert_eq!(driver.step(), "A3*");
    assert_eq!(driver.outcome(a).end, Some(EndReason::Length));
    driver.assert_empty();

    let mut driver = Driver::new(continuous());
    let new = NewRequest {
        credit: Some(3),
        ..NewRequest::new(vec!['A' as i32; 4], 12)
    };
    let a = driver.add_request('A', new);
    driver.step();
    assert!(driver.scheduler.draft(a, 0, &tokens[1..8]));
    assert_eq!(driver.step(), "A2*");
    assert_eq!(driver.outcome(a).tokens, tokens[..3]);
}

#[test]
fn too_many_drafts_and_unknown_tokens_are_left_out() {
    let wide = Config {
        max_num_batched_tokens: 64,
        ..continuous()
    };
    let (mut driver, a) = decoding(wide, 60);
    assert!(driver.scheduler.draft(a, 0, &[WRONG; 3 * MAX_DRAFTS]));
    assert_eq!(driver.step(), format!("A{}*", 1 + MAX_DRAFTS));
    assert!(driver.scheduler.draft(a, 0, &[5, -1, 5]));
    assert_eq!(driver.step(), "A2*");
    assert!(driver.scheduler.draft(a, 0, &[1000]));
    assert_eq!(driver.step(), "A1*");
}

#[test]
fn only_an_answer_that_decodes_takes_drafts() {
    let mut driver = Driver::new(Config {
        max_num_seqs: 1,
        ..continuous()
    });
    let a = driver.add('A', 12, 4);
    let b = driver.add('B', 4, 4);
    let drafts = |driver: &mut Driver, id| driver.scheduler.draft(id, 0, &[1]);
    assert!(!drafts(&mut driver, a), "it waits");
    driver.step();
    assert!(!drafts(&mut driver, a), "part of its prompt is left");
    driver.step();
    assert!(!driver.scheduler.draft(a, 1, &[1]), "it has one answer");
    assert!(!drafts(&mut driver, RequestId(77)), "no such request");
    driver.pause(a, true);
    assert!(!drafts(&mut driver, a), "it is paused");
    driver.pause(a, false);
    assert!(drafts(&mut driver, a));
    let (next, _, plan) = driver.plan();
    assert!(!drafts(&mut driver, a), "a step samples its next token");
    let Next::Run(step) = next else {
        unreachable!("a step is planned")
    };
    let sampled = driver.run(&plan);
    driver.update(step, &sampled);
    assert!(!drafts(&mut driver, b), "it waits for a row");
    driver.scheduler.abort(0, a, EndReason::Cancelled);
    assert!(!drafts(&mut driver, a), "it has ended");
}

#[test]
fn drafts_preempt_nobody() {
    // Four blocks: A and B have two each, both full after the step.
    let mut driver = Driver::new(Config {
        num_blocks: 5,
        max_model_len: 16,
        ..continuous()
    });
    let (a, b) = (driver.add('A', 4, 9), driver.add('B', 4, 9));
    assert_eq!(driver.step(), "A4* B4*");
    let tokens = answer('A', 4, 9);
    assert!(driver.scheduler.draft(a, 0, &tokens[1..7]));
    // Three drafts fit into the block that the decode takes; the rest would need B's.
    assert_eq!(driver.step(), "A4* B1*");
    assert_eq!(driver.load().num_preemptions, 0);
    driver.trace();
    assert_eq!(driver.outcome(a).tokens, tokens);
    assert_eq!(driver.outcome(b).tokens, answer('B', 4, 9));
}

#[test]
fn a_stop_amid_accepted_drafts_ends_the_answer() {
    let tokens = answer('A', 4, 8);
    let mut driver = Driver::new(continuous());
    let new = NewRequest {
        stop_token_ids: vec![tokens[3]],
        ..NewRequest::new(vec!['A' as i32; 4], 12)
    };
    let a = driver.add_request('A', new);
    driver.step();
    assert!(driver.scheduler.draft(a, 0, &tokens[1..7]));
    driver.step();
    assert_eq!(driver.outcome(a).tokens, tokens[..4]);
    assert_eq!(driver.outcome(a).end, Some(EndReason::StopToken(tokens[3])));
    driver.assert_empty();
}

#[test]
fn a_failed_step_with_drafts_is_computed_again_without() {
    let (mut driver, a) = decoding(continuous(), 12);
    let tokens = answer('A', 4, 12);
    assert!(driver.scheduler.draft(a, 0, &tokens[1..4]));
    assert_eq!(driver.failing_step(&[]), "A4*");
    driver.check();
    assert_eq!(driver.step(), "A5*");
    assert_eq!(driver.load().num_recomputed_tokens, 5);
    driver.trace();
    assert_eq!(driver.outcome(a).tokens, tokens);
}

#[test]
fn a_sample_that_is_not_finite_after_a_draft_leaves_those_before() {
    let outcome = |not_finite: usize| {
        let (mut driver, a) = decoding(continuous(), 12);
        let tokens = answer('A', 4, 12);
        assert!(driver.scheduler.draft(a, 0, &tokens[1..3]));
        let (next, _, plan) = driver.plan();
        let Next::Run(step) = next else {
            unreachable!("a step is planned")
        };
        let mut sampled = driver.run(&plan);
        sampled[not_finite] = -1;
        driver.update(step, &sampled);
        driver.collect();
        driver.trace();
        let outcome = driver.outcome(a).clone();
        (outcome.tokens == tokens, outcome.end)
    };
    let complete = (true, Some(EndReason::Length));
    assert_eq!(outcome(1), complete);
    assert_eq!(outcome(2), complete);
    let failed = Some(EndReason::Failed(Failure::NumericFault));
    assert_eq!(outcome(0), (false, failed));
}

#[test]
fn a_slot_of_a_row_with_drafts_gives_one_token() {
    let (mut driver, a) = decoding(continuous(), 12);
    assert!(driver.scheduler.draft(a, 0, &[WRONG]));
    let (next, ..) = driver.plan();
    let Next::Run(step) = next else {
        unreachable!("a step is planned")
    };
    for sampled in [&[1][..], &[1, 1, 1]] {
        let error = driver.scheduler.update(0, step, sampled);
        assert!(matches!(error, Err(StepError::WrongSamples { .. })));
    }
}

#[test]
fn a_step_ahead_leaves_out_a_row_whose_drafts_are_in_flight() {
    let (mut driver, a) = decoding(
        Config {
            steps_in_flight: 2,
            ..continuous()
        },
        12,
    );
    let tokens = answer('A', 4, 12);
    assert!(driver.scheduler.draft(a, 0, &tokens[1..8]));
    let (next, trace, plan) = driver.plan();
    // The step ahead may need the free blocks: drafts fill the block that the decode takes.
    assert_eq!(trace, "A4*");
    assert_eq!(driver.plan().1, "-");
    let Next::Run(step) = next else {
        unreachable!("a step is planned")
    };
    let sampled = driver.run(&plan);
    driver.update(step, &sampled);
    driver.collect();
    assert_eq!(driver.outcome(a).tokens, tokens[..5]);
    driver.trace();
    assert_eq!(driver.outcome(a).tokens, tokens);
}

#[test]
fn blocks_of_accepted_drafts_are_found_by_others_and_those_of_wrong_ones_are_not() {
    let cached = |num_right: usize| {
        let (mut driver, a) = decoding(
            Config {
                prefix_cache: true,
                ..continuous()
            },
            30,
        );
        let tokens = answer('A', 4, 30);
        let mut drafts = tokens[1..8].to_vec();
        drafts[num_right..].fill(WRONG);
        assert!(driver.scheduler.draft(a, 0, &drafts));
        assert_eq!(driver.step(), "A8*");
        let prompt = |drafts: &[i32]| {
            let known = [&[i32::from(b'A'); 4][..], &tokens[..1], drafts, &[5]].concat();
            NewRequest::new(known, 1)
        };
        let right = driver.add_request('B', prompt(&tokens[1..8]));
        let wrong = driver.add_request('C', prompt(&drafts));
        driver.step();
        driver.trace();
        assert!(driver.outcome(right).end.is_some() && driver.outcome(wrong).end.is_some());
        assert_eq!(driver.outcome(a).tokens, tokens);
        driver.load().num_prefix_hits
    };
    // Of B and C, three full blocks each: the prompt's, and those that the answer has filled.
    assert_eq!(cached(7), 3 + 3);
    assert_eq!(cached(3), 2 + 2);
    assert_eq!(cached(0), 1 + 1);
}

#[test]
fn each_of_several_answers_takes_its_own_drafts() {
    let mut driver = Driver::new(continuous());
    let new = NewRequest {
        num_sequences: 2,
        ..NewRequest::new(vec!['A' as i32; 6], 12)
    };
    let added = driver.scheduler.add(0, new).expect("it is taken");
    let mut plan = chairlift_core::plan::Plan::default();
    for num_slots in [1, 2] {
        let Next::Run(step) = driver.scheduler.schedule(0, &mut plan) else {
            unreachable!("a step is planned")
        };
        driver.update(step, &vec![3; num_slots]);
    }
    assert!(driver.scheduler.draft(added.request, 1, &[3, 3]));
    let Next::Run(_) = driver.scheduler.schedule(0, &mut plan) else {
        unreachable!("a step is planned")
    };
    let mut buffer = vec![0; 200];
    let length = plan.encode(&mut buffer);
    let view = PlanView::parse(&buffer[..length]).expect("a plan");
    assert_eq!(view.draft_counts, [0, 2]);
    driver.check();
}

#[test]
fn wrong_drafts_find_what_a_window_frees() {
    let mut driver = Driver::new(Config {
        kv_groups: vec![KvGroup { window: None }, KvGroup { window: Some(3) }],
        ..continuous()
    });
    let a = driver.add('A', 7, 24);
    driver.step();
    let tokens = answer('A', 7, 24);
    for round in 0.. {
        let at = driver.outcome(a).tokens.len();
        let mut drafts = tokens[at..].to_vec();
        if let Some(draft) = drafts.get_mut(round % 4) {
            *draft = WRONG;
        }
        driver.scheduler.draft(a, 0, &drafts);
        if driver.step() == "-" {
            break;
        }
        driver.check();
    }
    assert_eq!(driver.outcome(a).tokens, tokens);
    driver.assert_empty();
}
