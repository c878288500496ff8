//! Cost of the scheduler: a decode step (schedule + update) by running requests, and a request that comes and goes.
//! `cargo bench -p chairlift-core`

use std::sync::Arc;

use chairlift_core::{
    Config, KvGroup, NewRequest, Scheduler,
    events::{EndReason, Events},
    plan::{Plan, PlanView},
    policy::Policy,
    scheduler::Next,
};
use chairlift_text::{
    TokenTable,
    answer::{CallFormat, Fields, Options},
};
use divan::Bencher;

fn main() {
    divan::main();
}

const PROMPT: usize = 128;
const BLOCK_SIZE: usize = 16;

fn config(num_running: usize) -> Config {
    Config {
        policy: Policy::Continuous,
        max_num_seqs: num_running,
        max_num_batched_tokens: 8192.max(num_running),
        step_budget: None,
        max_model_len: 1 << 20,
        max_queued_requests: num_running,
        vocab_size: 32_000,
        block_size: BLOCK_SIZE,
        num_blocks: num_running * 600,
        num_host_blocks: 0,
        swap_block_time: 0,
        kv_groups: vec![KvGroup { window: None }],
        state_snapshots: None,
        prefix_cache: true,
        hash_key: [0; 32],
        steps_in_flight: 1,
        max_step_drafts: 0,
        prompt_lookup: false,
    }
}

/// A scheduler with everyone past the prompt.
fn decoding(num_running: usize, has_fields: bool) -> (Scheduler, Plan, Vec<i32>, Events) {
    let config = config(num_running);
    let table = TokenTable::new(&vec![b"a".to_vec(); config.vocab_size], &[], &[], false);
    let mut scheduler = Scheduler::new(config, Arc::new(table)).expect("a valid configuration");
    for i in 0..num_running {
        // One in `BLOCK_SIZE` requests fills a block in each step, as in real traffic.
        let length = PROMPT + i % BLOCK_SIZE;
        let prompt = (0..length).map(|j| ((i * 7 + j) % 31_000) as i32).collect();
        let mut new = NewRequest::new(prompt, 1 << 19);
        new.text.detokenize = true;
        if has_fields {
            let options = Options {
                calls: Some(CallFormat::Hermes),
                ..Options::default()
            };
            new.fields = Some(Box::new(Fields::new(options, i as u64)));
        }
        scheduler.add(0, new).expect("there is room");
    }
    let capacity = 64 + 10 * num_running + 8192 + 4 * num_running * 70;
    let (mut plan, mut buffer, mut events) =
        (Plan::default(), vec![0; capacity], Events::default());
    while step(&mut scheduler, &mut plan, &mut buffer, &mut events) != (num_running, num_running) {}
    (scheduler, plan, buffer, events)
}

fn step(
    scheduler: &mut Scheduler,
    plan: &mut Plan,
    buffer: &mut [i32],
    events: &mut Events,
) -> (usize, usize) {
    let Next::Run(id) = scheduler.schedule(0, plan) else {
        panic!("there is work")
    };
    let length = plan.encode(buffer);
    let view = PlanView::parse(&buffer[..length]).expect("a plan");
    let shape = (view.rows.len(), view.input_ids.len());
    let tokens = vec![5; view.sample_rows.len()];
    scheduler.update(0, id, &tokens).expect("in flight");
    scheduler.take_events(events);
    divan::black_box(events);
    shape
}

#[divan::bench(args = [64, 256, 1024, 4096])]
fn decode_step(bencher: Bencher<'_, '_>, num_running: usize) {
    let (mut scheduler, mut plan, mut buffer, mut events) = decoding(num_running, false);
    bencher.bench_local(|| step(&mut scheduler, &mut plan, &mut buffer, &mut events));
}

/// The same where function calls are looked for in every answer.
#[divan::bench(args = [64, 256])]
fn decode_step_with_fields(bencher: Bencher<'_, '_>, num_running: usize) {
    let (mut scheduler, mut plan, mut buffer, mut events) = decoding(num_running, true);
    bencher.bench_local(|| step(&mut scheduler, &mut plan, &mut buffer, &mut events));
}

/// A request that comes and goes behind others that wait.
#[divan::bench(args = [1, 1000])]
fn add_and_abort(bencher: Bencher<'_, '_>, num_waiting: usize) {
    let mut config = config(64);
    config.max_queued_requests = num_waiting + 1;
    let table = TokenTable::new(&vec![b"a".to_vec(); config.vocab_size], &[], &[], false);
    let mut scheduler = Scheduler::new(config, Arc::new(table)).expect("a valid configuration");
    let mut events = Events::default();
    let mut now = 0;
    let mut add = |scheduler: &mut Scheduler| {
        now += 1;
        let new = NewRequest::new(vec![1; PROMPT], 16);
        scheduler.add(now, new).expect("there is room")
    };
    for _ in 0..num_waiting {
        add(&mut scheduler);
    }
    bencher.bench_local(|| {
        let added = add(&mut scheduler);
        scheduler.abort(0, added.request, EndReason::Cancelled);
        scheduler.take_events(&mut events);
    });
}
