//! Best-of: the answers with the highest total log probability are sent, when all have ended.

use crate::driver::{config, token_table};
use chairlift_core::{
    BestOptions, NewRequest, RequestId, SampleScores, Scheduler, StepError,
    events::{EndReason, EventKind, Events, Failure},
    plan::{Plan, PlanView},
    policy::Policy,
    scheduler::{Next, StepId},
};

/// Answer `i` draws the token `10 + i`, with a log probability that is given.
struct World {
    scheduler: Scheduler,
    plan: Plan,
    buffer: Vec<i32>,
    index_of_row: Vec<usize>,
    logprobs: Vec<f32>,
}

/// An answer that was sent: its index, tokens, log probabilities and candidates, its end, and its bill.
type Sent = (
    u32,
    Vec<i32>,
    Vec<f32>,
    Vec<i32>,
    EndReason,
    [usize; 3],
    bool,
);

impl World {
    fn new(logprobs: &[f32]) -> Self {
        let config = config(Policy::Continuous);
        Self {
            plan: Plan::default(),
            buffer: vec![0; Plan::capacity(&config)],
            index_of_row: vec![0; config.max_num_seqs],
            scheduler: Scheduler::new(config, token_table()).expect("a valid configuration"),
            logprobs: logprobs.to_vec(),
        }
    }

    fn add(&mut self, num_sent: usize, max_tokens: usize) -> RequestId {
        let best = BestOptions {
            num_sent,
            num_candidates: 1,
        };
        let new = NewRequest {
            num_sequences: self.logprobs.len(),
            best: Some(best),
            stop_token_ids: vec![12],
            ..NewRequest::new(vec![1, 2, 3], max_tokens)
        };
        self.scheduler
            .add(0, new)
            .expect("the request is taken")
            .request
    }

    fn plan(&mut self) -> Option<(StepId, Vec<usize>)> {
        let Next::Run(step) = self.scheduler.schedule(0, &mut self.plan) else {
            return None;
        };
        let length = self.plan.encode(&mut self.buffer);
        let view = PlanView::parse(&self.buffer[..length]).expect("a plan");
        for &[row, _, index, ..] in view.assigned {
            self.index_of_row[row as usize] = index as usize;
        }
        let mut end = 0;
        let mut drawn = Vec::new();
        for (&row, &count) in view.rows.iter().zip(view.num_tokens) {
            end += count;
            if view.sample_rows.contains(&(end - 1)) {
                drawn.push(self.index_of_row[row as usize]);
            }
        }
        Some((step, drawn))
    }

    fn step(&mut self) -> bool {
        let Some((step, drawn)) = self.plan() else {
            return false;
        };
        let tokens: Vec<_> = drawn.iter().map(|&index| 10 + index as i32).collect();
        let logprobs: Vec<_> = drawn.iter().map(|&index| self.logprobs[index]).collect();
        let scores = SampleScores {
            logprobs: &logprobs,
            ranks: &tokens,
            stride: 1,
            candidate_ids: &tokens,
            candidate_logprobs: &logprobs,
        };
        let updated = self.scheduler.update_scored(0, step, &tokens, scores);
        updated.expect("the step is the oldest");
        assert_eq!(self.scheduler.check_invariants(), Ok(()));
        true
    }

    fn sent(&mut self) -> Vec<Sent> {
        let mut events = Events::default();
        self.scheduler.take_events(&mut events);
        let mut sent: Vec<Sent> = Vec::new();
        let (mut tokens, mut logprobs, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for event in &events.list {
            match event.kind {
                EventKind::Kept(kept) => {
                    let kept = &events.kept[kept];
                    tokens.clone_from(&kept.tokens);
                    logprobs.clone_from(&kept.logprobs);
                    ids.clone_from(&kept.candidate_ids);
                }
                EventKind::Ended(end) => {
                    let end = &events.ends[end];
                    let stats = &end.stats;
                    let bill = [
                        stats.prompt_tokens,
                        stats.output_tokens,
                        stats.unsent_tokens,
                    ];
                    let output = (
                        std::mem::take(&mut tokens),
                        std::mem::take(&mut logprobs),
                        std::mem::take(&mut ids),
                    );
                    let (tokens, logprobs, ids) = output;
                    let reason = end.reason.clone();
                    sent.push((event.index, tokens, logprobs, ids, reason, bill, end.last));
                }
                _ => panic!("output is sent before its end"),
            }
        }
        sent
    }

    fn assert_empty(&self) {
        assert_eq!(self.scheduler.check_invariants(), Ok(()));
        let load = self.scheduler.load();
        assert_eq!((load.num_waiting, load.num_running), (0, 0));
        assert_eq!(load.num_free_blocks, load.num_blocks);
    }
}

#[test]
fn the_best_by_total_log_probability_come_at_the_end_in_order() {
    // The third stops with its first token.
    let mut world = World::new(&[-2.0, -1.0, -2.5, -3.0]);
    world.add(2, 3);
    let mut sent = Vec::new();
    while sent.is_empty() {
        assert!(world.step(), "nothing was sent");
        sent = world.sent();
    }
    let third = (
        0,
        vec![12],
        vec![-2.5],
        vec![12],
        EndReason::StopToken(12),
        [3, 1, 6],
        false,
    );
    let second = (
        1,
        vec![11; 3],
        vec![-1.0; 3],
        vec![11; 3],
        EndReason::Length,
        [0, 3, 0],
        true,
    );
    assert_eq!(sent, [third, second]);
    world.assert_empty();
}

#[test]
fn a_cancel_sends_the_best_so_far() {
    let mut world = World::new(&[-2.0, -1.0]);
    let request = world.add(1, 9);
    world.step();
    world.step();
    assert_eq!(world.sent(), []);
    world.scheduler.abort(0, request, EndReason::Cancelled);
    let sent = world.sent();
    let [(index, tokens, .., reason, bill, last)] = &sent[..] else {
        panic!("one answer")
    };
    assert_eq!((*index, reason, *last), (0, &EndReason::Cancelled, true));
    assert!(tokens.iter().all(|&token| token == 11), "{tokens:?}");
    assert_eq!(bill[0], 3);
    assert!(bill[2] > 0);
    world.assert_empty();
}

#[test]
fn a_cancel_before_the_first_step_ends_each_answer_that_is_asked_for() {
    let mut world = World::new(&[-2.0, -1.0, -1.0]);
    let request = world.add(2, 9);
    world.scheduler.abort(0, request, EndReason::Cancelled);
    let ends: Vec<_> = world.sent().into_iter().map(|it| (it.0, it.6)).collect();
    assert_eq!(ends, [(0, false), (1, true)]);
    world.assert_empty();
}

#[test]
fn a_failure_ends_all_with_one_event() {
    // The third has ended before.
    let mut world = World::new(&[-2.0, -1.0, -2.5]);
    let request = world.add(1, 9);
    world.step();
    world.step();
    let (step, _) = world.plan().expect("a step");
    let failed = world.scheduler.fail(0, step, &[request]);
    failed.expect("the step is the oldest");
    let sent = world.sent();
    let [(0, tokens, .., reason, bill, true)] = &sent[..] else {
        panic!("one end: {sent:?}")
    };
    assert_eq!(*reason, EndReason::Failed(Failure::StepFailed));
    assert!(tokens.is_empty());
    assert_eq!(bill[0], 3);
    assert!(bill[1] >= 3, "all tokens are on the bill");
    world.assert_empty();
}

#[test]
fn scores_that_do_not_fit_the_step_are_refused_and_change_nothing() {
    let run = |tries_wrong_scores: bool| {
        let mut world = World::new(&[-3.0, -1.0, -2.0]);
        world.add(2, 3);
        while let Some((step, drawn)) = world.plan() {
            let tokens: Vec<_> = drawn.iter().map(|&index| 10 + index as i32).collect();
            let logprobs: Vec<_> = drawn.iter().map(|&index| world.logprobs[index]).collect();
            let good = SampleScores {
                logprobs: &logprobs,
                ranks: &tokens,
                stride: 1,
                candidate_ids: &tokens,
                candidate_logprobs: &logprobs,
            };
            if tries_wrong_scores && tokens.len() > 1 {
                let short = tokens.len() - 1;
                let wrong = [
                    (
                        "logprobs",
                        SampleScores {
                            logprobs: &logprobs[..short],
                            ..good
                        },
                    ),
                    (
                        "ranks",
                        SampleScores {
                            ranks: &tokens[..short],
                            ..good
                        },
                    ),
                    (
                        "candidate_ids",
                        SampleScores {
                            candidate_ids: &tokens[..short],
                            ..good
                        },
                    ),
                    (
                        "candidate_ids",
                        SampleScores {
                            candidate_ids: &[],
                            ..good
                        },
                    ),
                    ("candidate_ids", SampleScores { stride: 2, ..good }),
                    (
                        "candidate_ids",
                        SampleScores {
                            stride: usize::MAX,
                            ..good
                        },
                    ),
                    (
                        "candidate_logprobs",
                        SampleScores {
                            candidate_logprobs: &logprobs[..short],
                            ..good
                        },
                    ),
                ];
                for (wrong_name, scores) in wrong {
                    let result = world.scheduler.update_scored(0, step, &tokens, scores);
                    let Err(StepError::WrongScores { name, .. }) = result else {
                        panic!("{wrong_name}: {result:?}");
                    };
                    assert_eq!(name, wrong_name);
                    assert_eq!(world.scheduler.check_invariants(), Ok(()));
                }
            }
            let updated = world.scheduler.update_scored(0, step, &tokens, good);
            updated.expect("the step is still in flight");
        }
        world.sent()
    };
    let expected = run(false);
    assert!(!expected.is_empty());
    assert_eq!(run(true), expected);
}
