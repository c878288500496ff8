//! What bytes can do: operations on the scheduler, and requests as strange as a client can make them.
//!
//! Under `cargo test` a few hundred runs and ten thousand requests, under `make fuzz` minutes of each.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bolero::{check, generator::*};
use chairlift_core::{
    Adapter, Config, KvGroup, Namespace, NewRequest, PromptOptions, RefusalReason, Scheduler,
    events::Events, plan::Plan, policy::Policy, scheduler::Next,
};
use chairlift_simulator::Simulator;
use chairlift_text::{TextOptions, TokenTable};

/// Bytes of a run: a hundred decide its settings, ten or so each event.
const LENGTHS: std::ops::RangeInclusive<usize> = 64..=8192;

#[test]
fn operations_from_bytes_break_nothing() {
    let simulator = Simulator::default();
    let num_steps = AtomicU64::new(0);
    check!()
        .with_generator(produce::<Vec<u8>>().with().len(LENGTHS))
        .with_max_len(2 * LENGTHS.end())
        .with_iterations(300)
        .for_each(|bytes| match simulator.run_bytes(bytes) {
            Ok(passed) => {
                num_steps.fetch_add(passed.tally.steps(), Relaxed);
            }
            Err(failed) => {
                let headline = failed.to_string();
                let trace = simulator.describe(&simulator.shrink(*failed));
                panic!("{headline}\n{trace}");
            }
        });
    assert!(num_steps.into_inner() > 100, "bytes reach the scheduler");
}

const VOCAB: usize = 8;

/// Prompt; limits; stop tokens and strings; tenant and salt; deadlines; switches; priority.
type Draft = (
    Vec<u8>,
    [usize; 2],
    (Vec<i32>, Vec<String>),
    [String; 2],
    [Option<u64>; 2],
    [bool; 5],
    i32,
);

fn request((prompt, limits, stops, names, deadlines, switches, priority): Draft) -> NewRequest {
    let [max_tokens, min_tokens] = limits;
    let [
        detokenize,
        skip_special_tokens,
        include_stop,
        cache_read,
        cache_write,
    ] = switches;
    let [tenant, salt] = names;
    NewRequest {
        // Nearly all ids are good, so that most prompts are.
        prompt: prompt
            .into_iter()
            .map(|id| match id {
                255 => -1,
                254 => i32::MIN,
                253 => VOCAB as i32,
                id => i32::from(id) % VOCAB as i32,
            })
            .collect(),
        num_sequences: match priority % 16 {
            1 => 0,
            2 => 2,
            3 => 3,
            _ => 1,
        },
        max_tokens,
        min_tokens,
        stop_token_ids: stops.0,
        end_ids: Vec::new(),
        text: TextOptions {
            detokenize,
            skip_special_tokens,
            stop: stops.1,
            stop_regex: None,
            include_stop,
        },
        fields: None,
        kept_tokens: Arc::new([]),
        namespace: Namespace {
            tenant,
            salt,
            adapter: Adapter::default(),
        },
        cache_read,
        cache_write,
        prompt_output: PromptOptions {
            echo: detokenize,
            scores: !cache_read,
        },
        queue_deadline: deadlines[0],
        first_token_by: deadlines[1],
        deadline: deadlines[1],
        credit: None,
        priority,
        turn_delay: u64::from(priority.unsigned_abs()),
    }
}

fn scheduler() -> Scheduler {
    let config = Config {
        policy: Policy::Continuous,
        max_num_seqs: 2,
        max_num_batched_tokens: 4,
        step_budget: None,
        max_model_len: 24,
        max_queued_requests: 2,
        vocab_size: VOCAB,
        block_size: 4,
        num_blocks: 6,
        num_host_blocks: 0,
        swap_block_time: 0,
        kv_groups: vec![KvGroup { window: None }],
        state_snapshots: None,
        prefix_cache: true,
        hash_key: [0; 32],
        steps_in_flight: 1,
        max_step_drafts: 0,
        prompt_lookup: false,
    };
    let tokens: Vec<_> = (0..VOCAB as u8).map(|token| vec![b'a' + token]).collect();
    let table = TokenTable::new(&tokens, &[7], &[6], true);
    Scheduler::new(config, Arc::new(table)).expect("the settings are valid")
}

/// Runs until nothing waits; how often a request came to its end.
fn finish(scheduler: &mut Scheduler) -> usize {
    let (mut plan, mut events) = (Plan::default(), Events::default());
    let mut now = 0;
    while let Next::Run(step) = scheduler.schedule(now, &mut plan) {
        assert!(now < 64, "more steps than tokens");
        // Each row samples with the last chunk of what it has to compute.
        let token = (now % VOCAB as u64) as i32;
        let took = [0, 1, 2].iter().any(|&num_samples: &usize| {
            let tokens = vec![token; num_samples];
            scheduler.update(now, step, &tokens).is_ok()
        });
        assert!(took, "a row samples at most once in a step");
        now += 1;
    }
    scheduler.take_events(&mut events);
    events.ends.iter().filter(|end| end.last).count()
}

#[test]
fn a_request_from_bytes_is_refused_by_field_or_answered() {
    const FIELDS: [&str; 5] = [
        "sampling.n",
        "prompt",
        "token_ids",
        "stopping.max_tokens",
        "stopping.min_tokens",
    ];
    let num_answered = AtomicU64::new(0);
    let num_refused = AtomicU64::new(0);
    check!()
        .with_type::<Draft>()
        .with_iterations(10_000)
        .cloned()
        .for_each(|draft| {
            let mut scheduler = scheduler();
            let empty = scheduler.load();
            match scheduler.add(0, request(draft)) {
                Ok(_) => {
                    num_answered.fetch_add(1, Relaxed);
                    let num_ends = finish(&mut scheduler);
                    assert_eq!(num_ends, 1, "an accepted request ends, once");
                    let load = scheduler.load();
                    assert_eq!((load.num_running, load.num_waiting), (0, 0));
                    assert_eq!(load.num_free_blocks, load.num_blocks);
                }
                Err(refusal) => {
                    num_refused.fetch_add(1, Relaxed);
                    assert_ne!(refusal.reason, RefusalReason::QueueFull);
                    assert!(FIELDS.contains(&refusal.field), "{refusal}");
                    assert!(refusal.message.starts_with("expected "), "{refusal}");
                    assert_eq!(scheduler.load(), empty, "a refusal leaves nothing behind");
                }
            }
            assert_eq!(scheduler.check_invariants(), Ok(()));
        });
    let (answered, refused) = (num_answered.into_inner(), num_refused.into_inner());
    assert!(
        answered > 100 && refused > 100,
        "{answered} answered, {refused} refused"
    );
}
