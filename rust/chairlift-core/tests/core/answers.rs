//! Requests with several answers: rows for all of them, the prompt computed once, blocks shared and copied.

use crate::driver::{config, token_table};
use chairlift_core::{
    Config, NewRequest, RefusalReason, RequestId, Scheduler,
    events::{EndReason, EventKind, Events, Failure},
    plan::{Plan, PlanView},
    policy::Policy,
    scheduler::{Change, Next, StepId},
};
use chairlift_draws::token::{NO_TOKEN_LEFT, TOO_COMPLEX};

/// The scheduler alone: every row that samples gets its answer's index as the token.
struct World {
    scheduler: Scheduler,
    plan: Plan,
    buffer: Vec<i32>,
    answer_of_row: Vec<i32>,
}

/// What is to be known of a step: how many tokens each row computed, the copies, and the rows that joined.
#[derive(Debug, Default, PartialEq, Eq)]
struct Step {
    num_tokens: Vec<i32>,
    num_copies: usize,
    num_joined: usize,
}

/// An end: which answer, why, the tokens of prompt and output on its bill, and whether it is the last.
type End = (u32, EndReason, (usize, usize), bool);

impl World {
    fn new(config: Config) -> Self {
        Self {
            plan: Plan::default(),
            buffer: vec![0; Plan::capacity(&config)],
            answer_of_row: vec![0; config.max_num_seqs],
            scheduler: Scheduler::new(config, token_table()).expect("a valid configuration"),
        }
    }

    fn add(&mut self, num_prompt: usize, num_sequences: usize, max_tokens: usize) -> RequestId {
        self.add_request(NewRequest {
            num_sequences,
            ..NewRequest::new(vec![7; num_prompt], max_tokens)
        })
    }

    fn add_request(&mut self, new: NewRequest) -> RequestId {
        let num_sequences = new.num_sequences;
        let added = self.scheduler.add(0, new).expect("the request is taken");
        assert_eq!(added.slots.len(), num_sequences);
        added.request
    }

    fn plan(&mut self) -> Option<(StepId, Step, Vec<i32>)> {
        let next = self.scheduler.schedule(0, &mut self.plan);
        self.check();
        let Next::Run(id) = next else { return None };
        let length = self.plan.encode(&mut self.buffer);
        let view = PlanView::parse(&self.buffer[..length]).expect("a plan");
        for &[row, _, index, ..] in view.assigned {
            self.answer_of_row[row as usize] = index;
        }
        let ends = view.num_tokens.iter().scan(0, |end, count| {
            *end += count;
            Some(*end - 1)
        });
        let samples = view.rows.iter().zip(ends);
        let samples = samples.filter(|(_, end)| view.sample_rows.contains(end));
        let tokens = samples.map(|(&row, _)| self.answer_of_row[row as usize]);
        let tokens = tokens.collect();
        let step = Step {
            num_tokens: view.num_tokens.to_vec(),
            num_copies: view.copies.len(),
            num_joined: view.assigned.len(),
        };
        Some((id, step, tokens))
    }

    fn step(&mut self) -> Option<Step> {
        let (id, step, tokens) = self.plan()?;
        self.report(id, &tokens);
        Some(step)
    }

    fn report(&mut self, id: StepId, tokens: &[i32]) {
        self.scheduler.update(0, id, tokens).expect("it fits");
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.scheduler.check_invariants(), Ok(()));
    }

    /// The ends since the last call; tokens are their answer's index.
    fn ends(&mut self) -> Vec<End> {
        let mut events = Events::default();
        self.scheduler.take_events(&mut events);
        let mut ends = Vec::new();
        for event in events.list {
            match event.kind {
                EventKind::Tokens { tokens, .. } => {
                    let mut tokens = events.tokens[tokens].iter();
                    assert!(tokens.all(|&token| token == event.index as i32));
                }
                EventKind::Prompt { .. } => unreachable!("none is wanted"),
                EventKind::Ended(end) => {
                    let end = &events.ends[end];
                    let bill = (end.stats.prompt_tokens, end.stats.output_tokens);
                    ends.push((event.index, end.reason.clone(), bill, end.last));
                }
            }
        }
        ends
    }

    fn used_blocks(&self) -> usize {
        let load = self.scheduler.load();
        load.num_blocks - load.num_free_blocks
    }

    fn assert_empty(&mut self) {
        while self.step().is_some() {}
        let load = self.scheduler.load();
        assert_eq!((load.num_waiting, load.num_running), (0, 0));
        assert_eq!((self.used_blocks(), load.num_rows_held), (0, 0));
    }
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "to be compared with what World::step gives"
)]
fn step(num_tokens: &[i32], num_copies: usize, num_joined: usize) -> Option<Step> {
    Some(Step {
        num_tokens: num_tokens.to_vec(),
        num_copies,
        num_joined,
    })
}

fn continuous() -> Config {
    config(Policy::Continuous)
}

#[test]
fn the_prompt_is_computed_once_and_its_full_blocks_are_shared() {
    let mut world = World::new(continuous());
    // Two full blocks and two tokens of a third.
    world.add(10, 3, 8);
    assert_eq!(
        world.step(),
        step(&[8], 0, 3),
        "rows for all, a chunk for one"
    );
    assert_eq!(world.step(), step(&[2], 0, 0));
    assert_eq!(world.used_blocks(), 3);
    assert_eq!(
        world.step(),
        step(&[1, 1, 1], 2, 0),
        "two answers copy the third"
    );
    assert_eq!(world.used_blocks(), 2 + 3);
    assert_eq!(world.step(), step(&[1, 1, 1], 0, 0));
    world.assert_empty();
}

#[test]
fn nothing_is_copied_where_the_last_block_begins_with_the_last_token() {
    let mut world = World::new(continuous());
    world.add(5, 2, 4);
    assert_eq!(world.step(), step(&[5], 0, 2));
    assert_eq!(world.step(), step(&[1, 1], 0, 0));
    world.assert_empty();
}

#[test]
fn each_answer_ends_for_itself_and_the_prompt_is_on_the_bill_once() {
    let mut world = World::new(continuous());
    world.add_request(NewRequest {
        num_sequences: 3,
        stop_token_ids: vec![1],
        ..NewRequest::new(vec![7; 6], 4)
    });
    while world.step().is_some() {}
    let stop = EndReason::StopToken(1);
    let expected = [
        (1, stop, (0, 1), false),
        (0, EndReason::Length, (6, 4), false),
        (2, EndReason::Length, (0, 4), true),
    ];
    assert_eq!(world.ends(), expected);
    world.assert_empty();
}

#[test]
fn an_answer_that_is_not_finite_ends_all() {
    let mut world = World::new(continuous());
    world.add(6, 3, 9);
    world.add(2, 1, 9);
    (0..3).for_each(|_| assert!(world.step().is_some()));
    assert_eq!(world.ends(), []);
    let (id, _, mut tokens) = world.plan().expect("four decode");
    tokens[1] = -1;
    world.report(id, &tokens);
    let failed = EndReason::Failed(Failure::NumericFault);
    // The first answer had its token before; of the last two nothing more is told.
    assert_eq!(world.ends(), [(0, failed, (6, 4 + 2 + 2), true)]);
    assert_eq!(world.scheduler.load().num_running, 1);
    world.assert_empty();
}

#[test]
fn a_request_fails_for_what_its_draw_says() {
    for (token, failure) in [
        (NO_TOKEN_LEFT, Failure::NoTokenLeft),
        (TOO_COMPLEX, Failure::ConstraintTooComplex),
        (-9, Failure::NumericFault),
    ] {
        let mut world = World::new(continuous());
        world.add(2, 1, 9);
        world.add(3, 1, 2);
        let (id, _, mut tokens) = world.plan().expect("two begin");
        tokens[0] = token;
        world.report(id, &tokens);
        let failed = EndReason::Failed(failure);
        assert_eq!(world.ends(), [(0, failed, (2, 0), true)]);
        assert_eq!(world.scheduler.load().num_running, 1);
        world.assert_empty();
    }
}

#[test]
fn a_cancel_ends_every_answer_in_any_state() {
    for num_steps in 0..4 {
        let mut world = World::new(continuous());
        let request = world.add(10, 3, 9);
        (0..num_steps).for_each(|_| assert!(world.step().is_some()));
        assert!(world.scheduler.abort(0, request, EndReason::Cancelled));
        assert!(!world.scheduler.abort(0, request, EndReason::Cancelled));
        let ends = world.ends();
        assert_eq!(ends.len(), 3, "after {num_steps} steps");
        assert!(ends.iter().all(|end| end.1 == EndReason::Cancelled));
        assert_eq!(ends.iter().map(|end| end.2.0).sum::<usize>(), 10);
        assert_eq!(ends.iter().filter(|end| end.3).count(), 1);
        world.assert_empty();
    }
}

#[test]
fn a_request_waits_until_all_its_answers_find_a_row() {
    let mut world = World::new(continuous());
    world.add(2, 1, 3);
    world.add(2, 1, 9);
    world.add(2, 3, 1);
    assert_eq!(
        world.step(),
        step(&[2, 2], 0, 2),
        "two of four rows are left"
    );
    assert_eq!(world.scheduler.load().num_waiting, 3);
    (0..2).for_each(|_| assert_eq!(world.step(), step(&[1, 1], 0, 0)));
    assert_eq!(world.step(), step(&[1, 2], 0, 3));
    world.assert_empty();
}

#[test]
fn batches_and_the_queue_count_answers() {
    let mut world = World::new(config(Policy::Batched {
        size: 3,
        patience: 100,
    }));
    world.add(2, 2, 1);
    assert_eq!(world.step(), None, "two of three");
    world.add(2, 2, 1);
    assert_eq!(
        world.step(),
        step(&[2], 0, 2),
        "the second does not fit into the batch"
    );
    let mut small = World::new(Config {
        max_queued_requests: 4,
        ..continuous()
    });
    small.add(2, 3, 1);
    let two = NewRequest {
        num_sequences: 2,
        ..NewRequest::new(vec![1], 1)
    };
    let refusal = small.scheduler.add(0, two).map_err(|r| r.reason);
    assert_eq!(refusal, Err(RefusalReason::QueueFull));
}

#[test]
fn a_request_larger_than_a_batch_is_a_batch() {
    let mut world = World::new(config(Policy::Batched {
        size: 2,
        patience: 0,
    }));
    world.add(2, 3, 1);
    assert_eq!(world.step(), step(&[2], 0, 3));
    world.assert_empty();
}

#[test]
fn too_many_answers_are_refused_by_name() {
    let mut world = World::new(continuous());
    for num_sequences in [0, 5] {
        let new = NewRequest {
            num_sequences,
            ..NewRequest::new(vec![1], 1)
        };
        let refusal = world.scheduler.add(0, new).expect_err("four rows");
        assert_eq!(refusal.field, "sampling.n");
        assert_eq!(
            refusal.message,
            format!("expected 1 to 4, got {num_sequences}")
        );
    }
}

#[test]
fn credit_is_dealt_out_and_what_is_left_of_it_goes_to_the_others() {
    let mut world = World::new(continuous());
    let request = world.add_request(NewRequest {
        num_sequences: 2,
        stop_token_ids: vec![1],
        credit: Some(7),
        ..NewRequest::new(vec![7; 2], 9)
    });
    while world.step().is_some() {}
    // Answer 1 stops at once with 2 of its 3; answer 0 has these beside its own 4.
    assert_eq!(world.ends(), [(1, EndReason::StopToken(1), (0, 1), false)]);
    let state = world.scheduler.explain(request).expect("it lives");
    assert_eq!(state.num_tokens, 2 + 6);
    let change = Change {
        credit: 3,
        ..Change::default()
    };
    assert_eq!(world.scheduler.change(0, request, change), Ok(()));
    while world.step().is_some() {}
    assert_eq!(world.ends(), [(0, EndReason::Length, (2, 9), true)]);
    world.assert_empty();
}

#[test]
fn after_a_failed_step_all_keep_their_rows_and_the_prompt_is_computed_once_again() {
    let mut world = World::new(continuous());
    world.add(10, 3, 2);
    assert_eq!(world.step(), step(&[8], 0, 3));
    let (id, _, _) = world.plan().expect("the rest of the prompt");
    world.scheduler.fail(0, id, &[]).expect("it is in flight");
    assert_eq!(world.scheduler.load().num_waiting, 0);
    assert_eq!(world.step(), step(&[8], 0, 1), "one row begins again");
    assert_eq!(world.step(), step(&[2], 0, 0));
    assert_eq!(world.step(), step(&[1, 1, 1], 2, 0));
    world.assert_empty();
}

#[test]
fn after_a_failed_step_answers_that_shared_blocks_take_their_own_as_far_as_there_is_room() {
    let mut world = World::new(Config {
        num_blocks: 1 + 9,
        max_num_batched_tokens: 32,
        ..continuous()
    });
    world.add(17, 2, 3);
    assert_eq!(world.step(), step(&[17], 0, 2));
    assert_eq!(world.step(), step(&[1, 1], 0, 0));
    assert_eq!(world.used_blocks(), 6, "four are shared");
    let (id, _, _) = world.plan().expect("a decode of both");
    world.scheduler.fail(0, id, &[]).expect("it is in flight");
    world.check();
    let load = world.scheduler.load();
    assert_eq!((load.num_running, load.num_preemptions), (2, 0));
    // Each needs five blocks of nine: the second is preempted for want of blocks when its turn comes.
    while world.step().is_some() {}
    assert_eq!(world.scheduler.load().num_preemptions, 1);
    let ends = world.ends();
    assert_eq!(ends.iter().map(|end| end.2.1).sum::<usize>(), 6);
    world.assert_empty();
}

#[test]
fn an_answer_that_gives_way_comes_back_alone() {
    let mut world = World::new(Config {
        num_blocks: 1 + 5,
        ..continuous()
    });
    world.add(6, 2, 12);
    while world.step().is_some() {}
    assert!(world.scheduler.load().num_preemptions > 0);
    let ends = world.ends();
    assert_eq!(ends.len(), 2);
    assert_eq!(ends.iter().map(|end| end.2.1).sum::<usize>(), 24);
    world.assert_empty();
}
