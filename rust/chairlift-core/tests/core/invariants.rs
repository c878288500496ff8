//! Random operations on the scheduler; after each one everything must add up.

use std::collections::BTreeMap;

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{
    KvGroup, NewRequest, RequestId,
    events::{EndReason, Failure},
    policy::Policy,
    scheduler::Next,
};
use proptest::prelude::*;

/// What a user does to a scheduler.
#[derive(Clone, Debug)]
enum Op {
    Add {
        prompt: usize,
        prefix: u8,
        max_tokens: usize,
        stop_early: bool,
        deadline: u64,
    },
    Step,
    FailedStep {
        failing: usize,
    },
    BrokenRow,
    AbortInFlight(usize),
    Abort(usize),
    Flush,
    Tick(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..40_usize, 0..3_u8, 1..20_usize, any::<bool>(), 1..200_u64).prop_map(
            |(prompt, prefix, max_tokens, stop_early, deadline)| Op::Add {
                prompt,
                prefix,
                max_tokens,
                stop_early,
                deadline
            }
        ),
        12 => Just(Op::Step),
        1 => any::<usize>().prop_map(|failing| Op::FailedStep { failing }),
        1 => Just(Op::BrokenRow),
        1 => any::<usize>().prop_map(Op::AbortInFlight),
        2 => any::<usize>().prop_map(Op::Abort),
        1 => Just(Op::Flush),
        2 => (1..30_u64).prop_map(Op::Tick),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Continuous),
        (1..4_usize, prop_oneof![Just(10), Just(40)])
            .prop_map(|(size, patience)| Policy::Batched { size, patience }),
    ]
}

/// The scheduler under test, and what each request must answer.
struct Machine {
    driver: Driver,
    expected: BTreeMap<RequestId, Vec<i32>>,
}

impl Machine {
    fn nth(&self, i: usize) -> Option<RequestId> {
        let index = i.checked_rem(self.expected.len())?;
        self.expected.keys().nth(index).copied()
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Add {
                prompt,
                prefix,
                max_tokens,
                stop_early,
                deadline,
            } => {
                self.add(prompt, prefix, max_tokens, stop_early, deadline);
            }
            Op::Step => drop(self.driver.step()),
            Op::FailedStep { failing } => {
                let failing: Vec<_> = self.nth(failing).into_iter().collect();
                self.driver.failing_step(&failing);
            }
            Op::BrokenRow => self.broken_row(),
            Op::AbortInFlight(i) => self.abort_in_flight(i),
            Op::Abort(i) => {
                if let Some(request) = self.nth(i) {
                    let now = self.driver.now;
                    self.driver
                        .scheduler
                        .abort(now, request, EndReason::Cancelled);
                    self.driver.collect();
                }
            }
            Op::Flush => self.driver.scheduler.flush(),
            Op::Tick(time) => self.driver.now += time,
        }
        self.driver.check();
    }

    fn add(
        &mut self,
        prompt: usize,
        prefix: u8,
        max_tokens: usize,
        stop_early: bool,
        patience: u64,
    ) {
        let prompt: Vec<i32> = (0..prompt as i32)
            .map(|i| i * i32::from(prefix + 1) % 97)
            .collect();
        let mut expected = expected_tokens(&prompt, max_tokens.min(64 - prompt.len()));
        let mut new = NewRequest::new(prompt, max_tokens);
        new.namespace.salt = if prefix == 2 {
            "other".into()
        } else {
            String::new()
        };
        new.deadline = Some(self.driver.now + 20 * patience);
        new.queue_deadline = Some(self.driver.now + patience);
        if stop_early {
            let stop = expected[expected.len() / 2];
            new.stop_token_ids = vec![stop];
            let end = expected
                .iter()
                .position(|&token| token == stop)
                .expect("it is there");
            expected.truncate(end + 1);
        }
        if self.driver.scheduler.load().num_waiting < 16 {
            let request = self.driver.add_request('A', new);
            self.expected.insert(request, expected);
        }
    }

    /// The first sampled row of a step is not finite.
    fn broken_row(&mut self) {
        let (next, _, plan) = self.driver.plan();
        let Next::Run(step) = next else { return };
        let mut tokens = self.driver.run(&plan);
        tokens.iter_mut().take(1).for_each(|token| *token = -1);
        self.driver
            .scheduler
            .update(self.driver.now, step, &tokens)
            .expect("in flight");
        self.driver.collect();
    }

    /// A request ends between the plan of a step and its outcome.
    fn abort_in_flight(&mut self, i: usize) {
        let (next, _, plan) = self.driver.plan();
        if let Some(request) = self.nth(i) {
            self.driver
                .scheduler
                .abort(self.driver.now, request, EndReason::Cancelled);
        }
        self.driver.check();
        if let Next::Run(step) = next {
            let tokens = self.driver.run(&plan);
            self.driver.update(step, &tokens);
        }
        self.driver.collect();
    }

    /// No more faults: everything must end, in time, and give everything back.
    fn drain(&mut self) {
        self.driver.scheduler.flush();
        for _ in 0..2000 {
            if self.driver.step() == "-" {
                break;
            }
            self.driver.check();
        }
        self.driver.assert_empty();
    }

    /// Each answer is complete, or a prefix of what it had to be.
    fn check_answers(&self) {
        for (request, expected) in &self.expected {
            let outcome = self.driver.outcome(*request);
            let complete = matches!(
                outcome.end,
                Some(EndReason::Length | EndReason::StopToken(_))
            );
            let cut = matches!(
                outcome.end,
                Some(
                    EndReason::Cancelled
                        | EndReason::TimeLimit
                        | EndReason::Failed(
                            Failure::QueueTimeout | Failure::NumericFault | Failure::StepFailed
                        )
                )
            );
            assert!(complete || cut, "{request:?} ended with {:?}", outcome.end);
            if complete {
                assert_eq!(&outcome.tokens, expected);
            } else {
                assert!(expected.starts_with(&outcome.tokens));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_once_with_its_own_tokens_and_nothing_leaks(
        ops in prop::collection::vec(op(), 1..120),
        policy in policy(),
        num_blocks in 17..60_usize,
        num_groups in 1..3_usize,
        prefix_cache in any::<bool>(),
        budget in 4..40_usize,
    ) {
        let mut config = config(policy);
        config.kv_groups = vec![KvGroup { window: None }; num_groups];
        config.num_blocks = 1 + (num_blocks - 1) * num_groups;
        config.prefix_cache = prefix_cache;
        config.max_num_batched_tokens = budget;
        let mut machine = Machine { driver: Driver::new(config), expected: BTreeMap::new() };
        for op in &ops {
            machine.apply(op);
        }
        machine.drain();
        machine.check_answers();
    }
}
