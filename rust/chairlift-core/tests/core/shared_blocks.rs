//! Blocks that several answers share, while some of the answers are preempted.

use crate::driver::{config, token_table};
use chairlift_core::{
    Config, NewRequest, Scheduler,
    plan::{Plan, PlanView},
    policy::Policy,
    scheduler::{Change, Next},
};

struct World {
    scheduler: Scheduler,
    plan: Plan,
    buffer: Vec<i32>,
}

impl World {
    fn add(&mut self, num_prompt: usize, num_sequences: usize, credit: Option<u64>) -> u64 {
        let new = NewRequest {
            num_sequences,
            credit,
            ..NewRequest::new(vec![7; num_prompt], 2)
        };
        self.scheduler
            .add(0, new)
            .expect("the request is taken")
            .request
            .0
    }

    fn pause(&mut self, request: u64, paused: bool) {
        let change = Change {
            paused: Some(paused),
            ..Change::default()
        };
        let changed = self
            .scheduler
            .change(0, chairlift_core::RequestId(request), change);
        assert_eq!(changed, Ok(()));
    }

    /// Plans, checks and ends a step; returns how many blocks it copied and swapped in, or None if it is idle.
    fn step(&mut self) -> Option<(usize, usize)> {
        let Next::Run(id) = self.scheduler.schedule(0, &mut self.plan) else {
            return None;
        };
        let length = self.plan.encode(&mut self.buffer);
        let view = PlanView::parse(&self.buffer[..length]).expect("a plan");
        let written = view.swap_in.iter().chain(view.copies);
        let written: Vec<_> = written.map(|[_, target]| target).collect();
        let mut sources = view.copies.iter().map(|[source, _]| source);
        assert!(sources.all(|source| !written.contains(&source)), "{view:?}");
        let tokens = vec![1; view.sample_rows.len()];
        let (copies, swaps) = (view.copies.len(), view.swap_in.len());
        self.scheduler
            .update(0, id, &tokens)
            .expect("the step is in flight");
        self.scheduler.check_invariants().expect("nothing is lost");
        Some((copies, swaps))
    }
}

/// The first answer of B owns the block that its siblings copy, and has no credit left: when A goes on it is preempted, and
/// an answer of A comes back from host memory. A plan swaps before it copies.
#[test]
fn no_block_is_written_before_a_copy_has_read_it() {
    let config = Config {
        max_num_seqs: 9,
        max_num_batched_tokens: 64,
        num_blocks: 18,
        num_host_blocks: 59,
        ..config(Policy::Continuous)
    };
    let mut world = World {
        plan: Plan::default(),
        buffer: vec![0; Plan::capacity(&config)],
        scheduler: Scheduler::new(config, token_table()).expect("a valid configuration"),
    };
    let a = world.add(1, 6, None);
    assert!(world.step().is_some() && world.step().is_some());
    world.pause(a, true);
    world.add(2, 5, Some(5));
    assert!(world.step().is_some());
    world.pause(a, false);
    let steps: Vec<_> = std::iter::from_fn(|| world.step()).collect();
    assert!(steps.iter().any(|&(copies, _)| copies > 0), "{steps:?}");
    assert!(steps.iter().any(|&(_, swaps)| swaps > 0), "{steps:?}");
}
