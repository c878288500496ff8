//! What bytes can do: operations on the scheduler, and requests as strange as a client can make them.
//!
//! `cargo test` draws 256 runs and 10,240 requests, `make fuzz` as many as it is asked for.

use std::{cell::Cell, sync::Arc};

use chairlift_core::{
    Adapter, Config, KvGroup, Namespace, NewRequest, PromptOptions, RefusalReason, Scheduler,
    events::Events, plan::Plan, policy::Policy, scheduler::Next,
};
use chairlift_simulator::Simulator;
use chairlift_text::{TextOptions, TokenTable};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{TestCaseResult, TestRunner},
};

/// Bytes of a run: a hundred decide its settings, ten or so each event.
const LENGTHS: std::ops::RangeInclusive<usize> = 64..=8192;

/// Tests `factor` times as many cases as `PROPTEST_CASES` says.
fn check<S: Strategy>(factor: u32, cases: S, test: impl Fn(S::Value) -> TestCaseResult) {
    let config = ProptestConfig::with_source_file(file!());
    let mut runner = TestRunner::new(ProptestConfig {
        cases: factor.saturating_mul(config.cases),
        ..config
    });
    if let Err(error) = runner.run(&cases, test) {
        panic!("{error}");
    }
}

#[test]
fn operations_from_bytes_break_nothing() {
    let simulator = Simulator::default();
    let num_steps = Cell::new(0);
    check(1, vec(any::<u8>(), LENGTHS).no_shrink(), |bytes| {
        let passed = simulator.run_bytes(&bytes).map_err(|failed| {
            let headline = failed.to_string();
            let trace = simulator.describe(&simulator.shrink(*failed));
            TestCaseError::fail(format!("{headline}\n{trace}"))
        })?;
        num_steps.set(num_steps.get() + passed.tally.steps());
        Ok(())
    });
    assert!(num_steps.get() > 100, "bytes reach the scheduler");
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

/// Values that a client may well send, and now and then any value of their type.
fn often<T: Arbitrary + Clone + 'static>(
    usual: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<T> {
    prop_oneof![7 => usual, 1 => any::<T>()].boxed()
}

fn drafts() -> impl Strategy<Value = Draft> {
    let limit = || often(0..32_usize);
    let deadline = || often(prop::option::of(0..64_u64));
    let name = || often("[ab]?".prop_map(String::from));
    (
        vec(any::<u8>(), 0..32),
        [limit(), limit()],
        (vec(any::<i32>(), 0..4), vec(any::<String>(), 0..4)),
        [name(), name()],
        [deadline(), deadline()],
        any::<[bool; 5]>(),
        any::<i32>(),
    )
}

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
    let (num_answered, num_refused) = (Cell::new(0), Cell::new(0));
    let count = |number: &Cell<usize>| number.set(number.get() + 1);
    check(40, drafts(), |draft| {
        let mut scheduler = scheduler();
        let empty = scheduler.load();
        match scheduler.add(0, request(draft)) {
            Ok(_) => {
                count(&num_answered);
                let num_ends = finish(&mut scheduler);
                prop_assert_eq!(num_ends, 1, "an accepted request ends, once");
                let load = scheduler.load();
                prop_assert_eq!((load.num_running, load.num_waiting), (0, 0));
                prop_assert_eq!(load.num_free_blocks, load.num_blocks);
            }
            Err(refusal) => {
                count(&num_refused);
                prop_assert_ne!(refusal.reason, RefusalReason::QueueFull);
                prop_assert!(FIELDS.contains(&refusal.field), "{}", refusal);
                prop_assert!(refusal.message.starts_with("expected "), "{}", refusal);
                prop_assert_eq!(scheduler.load(), empty, "a refusal leaves nothing behind");
            }
        }
        prop_assert_eq!(scheduler.check_invariants(), Ok(()));
        Ok(())
    });
    let (answered, refused) = (num_answered.get(), num_refused.get());
    assert!(
        answered > 100 && refused > 100,
        "{answered} answered, {refused} refused"
    );
}
