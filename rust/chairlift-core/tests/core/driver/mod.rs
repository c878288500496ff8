//! Drives the real scheduler with a fake model whose tokens depend on every KV slot it reads.
//!
//! Each written slot holds a hash chain over the slot *before it, read through the block table*, the token and the
//! position; the sampled token is a hash of the last slot. So a wrong block, a stale hit, a lost or doubled token
//! changes the output, and [`expected_tokens`] knows what it must be without any cache.
#![allow(dead_code, reason = "each test file uses its part of the driver")]

mod runner;

use std::{collections::BTreeMap, sync::Arc};

use chairlift_core::{
    Config, KvGroup, Load, NewRequest, RequestId, RequestStats, Scheduler,
    events::{EndReason, EventKind, Events},
    plan::{Plan, PlanView},
    policy::Policy,
    scheduler::{Change, Next, StepId},
};
use chairlift_text::TokenTable;

use runner::FakeRunner;

pub(crate) const VOCAB: usize = 1000;

/// A small configuration: blocks of 4 tokens, 4 rows, a budget of 8.
pub(crate) fn config(policy: Policy) -> Config {
    Config {
        policy,
        max_num_seqs: 4,
        max_num_batched_tokens: 8,
        step_budget: None,
        max_model_len: 64,
        max_queued_requests: 16,
        vocab_size: VOCAB,
        block_size: 4,
        num_blocks: 65,
        num_host_blocks: 0,
        swap_block_time: 0,
        kv_groups: vec![KvGroup { window: None }],
        state_snapshots: None,
        prefix_cache: false,
        hash_key: [1; 32],
        steps_in_flight: 1,
        max_step_drafts: 1024,
        prompt_lookup: false,
    }
}

pub(crate) fn token_table() -> Arc<TokenTable> {
    let tokens: Vec<_> = (0..VOCAB).map(|id| format!("{id} ").into_bytes()).collect();
    Arc::new(TokenTable::new(&tokens, &[], &[], false))
}

fn mix(parent: u64, token: i32, position: usize) -> u64 {
    let mut x = parent ^ (token as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x ^= (position as u64).wrapping_mul(0xD1B5_4A32_D192_ED03);
    x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    x ^ (x >> 29)
}

fn token_of(hash: u64) -> i32 {
    (hash % VOCAB as u64) as i32
}

/// What the fake model answers, computed without a cache.
pub(crate) fn expected_tokens(prompt: &[i32], count: usize) -> Vec<i32> {
    let mut hash = 0;
    for (position, &token) in prompt.iter().enumerate() {
        hash = mix(hash, token, position);
    }
    let mut output = Vec::new();
    while output.len() < count {
        let token = token_of(hash);
        output.push(token);
        hash = mix(hash, token, prompt.len() + output.len() - 1);
    }
    output
}

/// How a request ended and what it had produced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) tokens: Vec<i32>,
    pub(crate) text: String,
    pub(crate) end: Option<EndReason>,
    /// What it was billed, once it has ended.
    pub(crate) stats: Option<RequestStats>,
    /// What was sent of its prompt.
    pub(crate) prompt: Vec<i32>,
    pub(crate) prompt_text: String,
    pub(crate) num_scores: usize,
    pub(crate) num_pieces: usize,
}

/// The scheduler, the fake runner, and what has come out.
pub(crate) struct Driver {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: u64,
    pub(crate) outcomes: BTreeMap<RequestId, Outcome>,
    names: BTreeMap<RequestId, char>,
    /// Which request each row was last assigned to, for the trace.
    row_names: Vec<char>,
    slot_names: BTreeMap<i32, char>,
    runner: FakeRunner,
    plan: Plan,
    buffer: Vec<i32>,
}

impl Driver {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            now: 0,
            outcomes: BTreeMap::new(),
            names: BTreeMap::new(),
            row_names: vec!['?'; config.max_num_seqs],
            slot_names: BTreeMap::new(),
            runner: FakeRunner::new(&config),
            plan: Plan::default(),
            buffer: vec![0; Plan::capacity(&config)],
            scheduler: Scheduler::new(config, token_table()).expect("a valid configuration"),
        }
    }

    /// Adds a request whose prompt is `name` repeated, and answers of exactly `max_tokens`.
    pub(crate) fn add(&mut self, name: char, num_prompt: usize, max_tokens: usize) -> RequestId {
        self.add_request(
            name,
            NewRequest::new(vec![name as i32; num_prompt], max_tokens),
        )
    }

    pub(crate) fn add_request(&mut self, name: char, new: NewRequest) -> RequestId {
        let added = self
            .scheduler
            .add(self.now, new)
            .expect("the request is taken");
        self.outcomes.insert(added.request, Outcome::default());
        self.names.insert(added.request, name);
        for &slot in &added.slots {
            self.slot_names.insert(slot as i32, name);
        }
        added.request
    }

    /// Changes a live request.
    pub(crate) fn change(&mut self, request: RequestId, change: Change) {
        let changed = self.scheduler.change(self.now, request, change);
        assert_eq!(changed, Ok(()));
        self.collect();
        self.check();
    }

    pub(crate) fn credit(&mut self, request: RequestId, credit: u64) {
        let change = Change {
            credit,
            ..Change::default()
        };
        self.change(request, change);
    }

    pub(crate) fn pause(&mut self, request: RequestId, paused: bool) {
        let change = Change {
            paused: Some(paused),
            ..Change::default()
        };
        self.change(request, change);
    }

    /// Plans a step; the trace names each row's request and tokens, `*` where it samples: `A5* B3`. `-` is idle.
    pub(crate) fn plan(&mut self) -> (Next, String, Vec<i32>) {
        let next = self.scheduler.schedule(self.now, &mut self.plan);
        if let Next::Idle { .. } = next {
            return (next, "-".into(), Vec::new());
        }
        let length = self.plan.encode(&mut self.buffer);
        let plan = self.buffer[..length].to_vec();
        let view = PlanView::parse(&plan).expect("a plan");
        for assigned in view.assigned {
            self.row_names[assigned[0] as usize] = self.slot_names[&assigned[1]];
        }
        let mut at = 0;
        let parts = view.rows.iter().zip(view.num_tokens).map(|(&row, &count)| {
            at += count;
            let sampled = if view.sample_rows.contains(&(at - 1)) {
                "*"
            } else {
                ""
            };
            format!("{}{count}{sampled}", self.row_names[row as usize])
        });
        let trace = parts.collect::<Vec<_>>().join(" ");
        (next, trace, plan)
    }

    /// Plans, runs and updates one step; returns its trace.
    pub(crate) fn step(&mut self) -> String {
        let (next, trace, plan) = self.plan();
        if let Next::Run(step) = next {
            let tokens = self.runner.run(&plan);
            self.update(step, &tokens);
        }
        self.collect();
        trace
    }

    /// As `step`, but the step fails after it has run.
    pub(crate) fn failing_step(&mut self, failing: &[RequestId]) -> String {
        let (next, trace, plan) = self.plan();
        if let Next::Run(step) = next {
            self.runner.run(&plan);
            self.scheduler
                .fail(self.now, step, failing)
                .expect("the step is in flight");
        }
        self.collect();
        trace
    }

    /// Runs a plan and gives what was sampled.
    pub(crate) fn run(&mut self, plan: &[i32]) -> Vec<i32> {
        self.runner.run(plan)
    }

    /// What a block holds.
    pub(crate) fn block_mut(&mut self, block: u32) -> &mut [u64] {
        self.runner.block_mut(block)
    }

    pub(crate) fn update(&mut self, step: StepId, tokens: &[i32]) {
        self.scheduler
            .update(self.now, step, tokens)
            .expect("the step is in flight");
    }

    /// Steps until idle; returns the traces.
    pub(crate) fn trace(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let line = self.step();
            if line == "-" {
                return lines;
            }
            lines.push(line);
            assert!(
                lines.len() < 10_000,
                "the scheduler does not come to an end"
            );
        }
    }

    /// Takes the events; every request ends at most once and nothing follows its end.
    pub(crate) fn collect(&mut self) {
        let mut events = Events::default();
        self.scheduler.take_events(&mut events);
        for event in &events.list {
            let outcome = self
                .outcomes
                .get_mut(&event.request)
                .expect("a known request");
            assert_eq!(outcome.end, None, "an event follows the last one");
            match &event.kind {
                EventKind::Tokens { text, tokens, .. } => {
                    outcome.text.push_str(&events.text[text.clone()]);
                    outcome
                        .tokens
                        .extend_from_slice(&events.tokens[tokens.clone()]);
                }
                EventKind::Prompt {
                    offset,
                    text,
                    tokens,
                    scores,
                } => {
                    outcome.num_pieces += 1;
                    assert_eq!(*offset, outcome.prompt.len(), "each position is sent once");
                    let tokens = &events.tokens[tokens.clone()];
                    outcome.prompt.extend_from_slice(tokens);
                    outcome.prompt_text.push_str(&events.text[text.clone()]);
                    outcome.num_scores += scores.len();
                }
                EventKind::Ended(end) => {
                    outcome.end = Some(events.ends[*end].reason.clone());
                    outcome.stats = Some(events.ends[*end].stats);
                }
            }
        }
    }

    pub(crate) fn outcome(&self, request: RequestId) -> &Outcome {
        &self.outcomes[&request]
    }

    pub(crate) fn load(&self) -> Load {
        self.scheduler.load()
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.scheduler.check_invariants(), Ok(()));
    }

    /// Nothing runs, waits, or holds a block or row.
    pub(crate) fn assert_empty(&self) {
        self.check();
        let load = self.load();
        assert_eq!(
            (load.num_waiting, load.num_running, load.num_rows_held),
            (0, 0, 0)
        );
        assert_eq!(
            load.num_free_blocks, load.num_blocks,
            "every block came back"
        );
        assert_eq!(load.num_free_host_blocks, load.num_host_blocks);
    }
}
