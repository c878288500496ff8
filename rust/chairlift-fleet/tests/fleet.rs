//! A fleet ends every request once, whatever happens to its replicas, and the same way each time.

use chairlift_core::{Config, KvGroup, Nanos, policy::Policy};
use chairlift_fleet::{
    Autoscale, Failures, Fleet, NEVER, Options, Outcomes, Request, Roles, StepTime, Unanswered,
    Work,
};
use chairlift_router::{
    Routing,
    random::{Random, mix},
};

const SECOND: Nanos = 1_000_000_000;

const STEP_TIME: StepTime = StepTime {
    fixed_s: 5e-3,
    per_token_s: 4e-5,
    per_context_token_s: 4e-8,
};

fn config(num_blocks: usize) -> Config {
    Config {
        policy: Policy::Continuous,
        max_num_seqs: 16,
        max_num_batched_tokens: 512,
        step_budget: None,
        max_model_len: 8192,
        max_queued_requests: 4096,
        vocab_size: i32::MAX as usize,
        block_size: 16,
        num_blocks,
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

fn options(num_replicas: usize, routing: Routing) -> Options {
    Options {
        num_replicas,
        routing,
        seed: 1,
        num_routers: 1,
        lag: 0,
        report_interval: None,
        failures: None,
        autoscale: None,
        roles: None,
        step_time: STEP_TIME,
    }
}

/// Conversations that come back with all they had, at a constant rate.
fn work(num_requests: usize, per_second: f64) -> Work {
    let mut random = Random::new(7);
    let mut work = Work {
        tokens_per_name: 16,
        ..Work::default()
    };
    let mut time = 0.0;
    for number in 0..num_requests {
        time += -random.uniform().ln() / per_second;
        let (conversation, turn) = (number % 41, number / 41 % 5);
        let num_names = 8 + 12 * turn;
        let start = work.names.len();
        let name = |place| mix(mix(conversation as u64 + 1) ^ place);
        work.names.extend((0..num_names as u64).map(name));
        work.requests.push(Request {
            arrival: (time * 1e9) as Nanos,
            num_prompt: num_names * 16 + 5,
            num_output: 1 + random.below(80),
            names: start..work.names.len(),
            cache_read: true,
            cache_write: true,
            ..Request::default()
        });
    }
    work
}

fn run(options: Options, work: Work, num_blocks: usize) -> Fleet {
    let mut fleet = Fleet::new(config(num_blocks), options, work).expect("a valid fleet");
    while fleet.run(1000) {}
    fleet
}

/// Every request has its whole answer, or one reason why not.
fn assert_all_ended(work: &Work, outcomes: &Outcomes) {
    for (index, (request, progress)) in work.requests.iter().zip(&outcomes.progress).enumerate() {
        let mut reasons = outcomes
            .unanswered
            .iter()
            .filter(|(of, _)| *of == index as u32);
        if progress.ended == NEVER {
            assert!(reasons.next().is_some(), "request {index} has not ended");
        } else {
            assert_eq!(progress.num_output, request.num_output, "request {index}");
            assert!(progress.first_token <= progress.ended);
        }
        assert!(reasons.next().is_none(), "request {index} has ended twice");
    }
}

fn times(outcomes: &Outcomes) -> Vec<(Nanos, Nanos)> {
    let progress = outcomes.progress.iter();
    progress
        .map(|progress| (progress.first_token, progress.ended))
        .collect()
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let options = Options {
            seed,
            failures: Some(Failures {
                per_hour: 60.0,
                detection: SECOND,
                restart: 5 * SECOND,
            }),
            ..options(6, Routing::Both)
        };
        times(run(options, work(1500, 60.0), 2000).outcomes())
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn it_does_not_matter_how_many_events_are_handled_at_once() {
    let (mut at_once, mut one_by_one) = [(); 2]
        .map(|()| Fleet::new(config(900), options(3, Routing::Both), work(300, 40.0)))
        .map(|fleet| fleet.expect("a valid fleet"))
        .into();
    while at_once.run(usize::MAX) {}
    while one_by_one.run(1) {}
    assert_eq!(times(at_once.outcomes()), times(one_by_one.outcomes()));
}

#[test]
fn every_request_is_answered_by_every_routing() {
    for routing in [
        Routing::RoundRobin,
        Routing::LeastLoad,
        Routing::Prefix,
        Routing::Both,
    ] {
        let fleet = run(options(5, routing), work(1000, 60.0), 1500);
        assert_all_ended(fleet.work(), fleet.outcomes());
        assert!(fleet.outcomes().unanswered.is_empty());
    }
}

#[test]
fn prefixes_are_found_where_the_router_knows_them() {
    let rate = |routing| {
        let fleet = run(options(8, routing), work(2000, 60.0), 600);
        let (names, found) = fleet.names_found();
        let ceiling = fleet.work().ceiling(16) as u64;
        assert!(found <= ceiling && ceiling < names);
        found as f64 / names as f64
    };
    let (both, round_robin) = (rate(Routing::Both), rate(Routing::RoundRobin));
    assert!(both > 1.5 * round_robin, "{both} {round_robin}");
}

#[test]
fn lost_replicas_lose_no_request_that_had_not_started() {
    let options = Options {
        lag: SECOND / 1000,
        failures: Some(Failures {
            per_hour: 200.0,
            detection: SECOND,
            restart: 3 * SECOND,
        }),
        ..options(8, Routing::Both)
    };
    let fleet = run(options, work(4000, 80.0), 1500);
    let outcomes = fleet.outcomes();
    assert!(
        outcomes.num_losses > 5 && outcomes.num_resent > 5,
        "{outcomes:?}"
    );
    assert_all_ended(fleet.work(), outcomes);
    for &(index, reason) in &outcomes.unanswered {
        let progress = &outcomes.progress[index as usize];
        assert_eq!(reason, Unanswered::Lost);
        // Either its client has a token already, or it was lost twice.
        assert!(progress.first_token != NEVER || progress.num_sent == 2);
    }
}

#[test]
fn a_fleet_without_any_replica_left_goes_on_when_one_comes_back() {
    let options = Options {
        failures: Some(Failures {
            per_hour: 1500.0,
            detection: SECOND / 10,
            restart: 4 * SECOND,
        }),
        ..options(1, Routing::LeastLoad)
    };
    let fleet = run(options, work(300, 10.0), 1500);
    assert!(fleet.outcomes().num_losses > 2);
    assert_all_ended(fleet.work(), fleet.outcomes());
}

#[test]
fn an_autoscaler_follows_the_load_and_loses_no_request() {
    let mut work = work(3000, 100.0);
    // A quiet time behind the busy one.
    let end = work.requests[2499].arrival;
    for (number, request) in work.requests.iter_mut().enumerate().skip(2500) {
        request.arrival = end + (number as u64 - 2499) * SECOND;
    }
    let options = Options {
        autoscale: Some(Autoscale {
            min_replicas: 1,
            target: 8,
            up_delay: 2 * SECOND,
            down_delay: 20 * SECOND,
            start: SECOND,
        }),
        ..options(12, Routing::Both)
    };
    let fleet = run(options, work, 1500);
    let outcomes = fleet.outcomes();
    assert_all_ended(fleet.work(), outcomes);
    assert!(outcomes.unanswered.is_empty());
    assert!(outcomes.max_replicas > 3, "{}", outcomes.max_replicas);
    let mean = outcomes.replica_time as f64 / (end + 500 * SECOND) as f64;
    assert!((1.0..3.0).contains(&mean), "{mean} replicas on average");
}

#[test]
fn routers_that_know_their_own_requests_alone_take_note_of_reports() {
    let run = |report_interval| {
        let options = Options {
            num_routers: 16,
            report_interval,
            ..options(4, Routing::LeastLoad)
        };
        let fleet = run(options, work(1000, 60.0), 1500);
        assert_all_ended(fleet.work(), fleet.outcomes());
        times(fleet.outcomes())
    };
    assert_ne!(run(Some(SECOND / 20)), run(None));
    // A report that never comes changes nothing.
    assert_eq!(run(Some(SECOND * 100_000)), run(None));
}

#[test]
fn a_request_that_was_cancelled_before_it_began_has_no_answer() {
    let mut work = work(50, 1000.0);
    let first = work.requests[40].arrival;
    work.requests[40].cancelled = Some(first);
    let fleet = run(options(1, Routing::Both), work, 1500);
    assert_eq!(fleet.outcomes().progress[40].num_output, 0);
    assert_eq!(
        fleet.outcomes().progress[41].num_output,
        fleet.work().requests[41].num_output
    );
}

#[test]
fn four_thousand_replicas_run() {
    // A queue has memory for each request that it may hold.
    let config = || Config {
        max_queued_requests: 16,
        ..config(300)
    };
    let options = |num_replicas| options(num_replicas, Routing::Both);
    let fleet = Fleet::new(config(), options(4096), work(6000, 5000.0));
    let mut fleet = fleet.expect("a valid fleet");
    while fleet.run(1000) {}
    assert_all_ended(fleet.work(), fleet.outcomes());
    assert!(fleet.outcomes().unanswered.is_empty());
    assert!(Fleet::new(config(), options(4097), work(1, 1.0)).is_err());
}

fn with_roles(num_prefill: usize, num_decode: usize, transfer_s: f64) -> Options {
    Options {
        roles: Some(Roles {
            num_prefill,
            transfer_s,
        }),
        ..options(num_prefill + num_decode, Routing::Both)
    }
}

/// Requests without names: (arrival in milliseconds, tokens of the prompt, tokens of the answer).
fn plain_work(requests: &[(u64, usize, usize)]) -> Work {
    let request = |&(arrival, num_prompt, num_output): &(u64, usize, usize)| Request {
        arrival: arrival * SECOND / 1000,
        num_prompt,
        num_output,
        cache_read: true,
        cache_write: true,
        ..Request::default()
    };
    Work {
        requests: requests.iter().map(request).collect(),
        tokens_per_name: 16,
        ..Work::default()
    }
}

#[test]
fn a_prompt_of_another_replica_takes_its_steps_there_the_link_and_one_step_here() {
    let (num_prompt, transfer_s) = (1000, 1e-5);
    let fleet = run(
        with_roles(1, 1, transfer_s),
        plain_work(&[(0, num_prompt, 3)]),
        2000,
    );
    // 62 blocks and one token go to the other replica, in chunks of 512 tokens; the last 30 blocks are sent behind the second.
    let steps = [(512, 512), (481, 993), (8, 1000)]
        .map(|(count, context)| STEP_TIME.duration(count, context));
    let link = (480.0 * transfer_s * 1e9) as Nanos;
    let outcomes = fleet.outcomes();
    assert_eq!(
        outcomes.progress[0].first_token,
        steps.iter().sum::<Nanos>() + link
    );
    assert_eq!(
        (outcomes.transfers.num_whole, outcomes.transfers.num_tokens),
        (1, 992)
    );
    assert_eq!(outcomes.progress[0].num_cached, 0);
}

/// Conversations whose turns are so long that others compute them.
fn long_work(num_requests: usize, per_second: f64) -> Work {
    let mut work = work(num_requests, per_second);
    work.tokens_per_name = 64;
    for request in &mut work.requests {
        request.num_prompt = request.names.len() * 64 + 5;
    }
    work
}

#[test]
fn prompts_of_other_replicas_are_answered_the_same_way_each_time() {
    let work = long_work(500, 20.0);
    let (mut at_once, mut one_by_one) = [(); 2]
        .map(|()| Fleet::new(config(5000), with_roles(2, 3, 1e-6), work.clone()))
        .map(|fleet| fleet.expect("a valid fleet"))
        .into();
    while at_once.run(usize::MAX) {}
    while one_by_one.run(1) {}
    assert_all_ended(&work, at_once.outcomes());
    assert_eq!(times(at_once.outcomes()), times(one_by_one.outcomes()));
    let transfers = at_once.outcomes().transfers;
    assert_eq!(transfers, one_by_one.outcomes().transfers);
    assert!(transfers.num_whole > 100, "{transfers:?}");
    let sent_to = at_once
        .outcomes()
        .progress
        .iter()
        .map(|progress| progress.replica);
    assert!(
        sent_to.min() >= Some(2),
        "the router chooses among decode replicas"
    );
}

#[test]
fn gaps_are_shorter_where_another_replica_computes_long_prompts() {
    let mut requests: Vec<_> = (0..8).map(|number| (number, 20, 400)).collect();
    requests.extend((1..6).map(|number| (number * 500, 4000, 2)));
    let longest = |options| {
        let fleet = run(options, plain_work(&requests), 4000);
        assert_eq!(fleet.outcomes().unanswered, []);
        let gaps = fleet.outcomes().gaps.counts();
        gaps.iter().map(|&(gap, _)| gap).max()
    };
    let apart = longest(with_roles(1, 1, 1e-6));
    let alone = longest(options(1, Routing::Both));
    assert!(apart.map(|gap| 2 * gap) < alone, "{apart:?} {alone:?}");
}

#[test]
fn a_link_that_is_too_slow_leaves_prompts_to_their_replicas() {
    let work = long_work(100, 5.0);
    let fleet = run(with_roles(1, 2, 0.1), work.clone(), 5000);
    assert_all_ended(&work, fleet.outcomes());
    let transfers = fleet.outcomes().transfers;
    assert_eq!(transfers.num_whole, 0);
    assert!(transfers.num_partial > 0, "{transfers:?}");
}

#[test]
fn a_request_that_is_cancelled_while_others_compute_its_prompt_ends_its_call() {
    let mut work = plain_work(&[(0, 7000, 2), (1, 3000, 2)]);
    work.requests[0].cancelled = Some(SECOND / 20);
    let fleet = run(with_roles(1, 1, 1e-6), work, 2000);
    let outcomes = fleet.outcomes();
    assert_eq!(outcomes.progress[1].num_output, 2);
    assert_eq!(outcomes.transfers.num_whole, 1);
    let prefilled = outcomes.steps[0].num_tokens;
    assert!(
        prefilled < 7000,
        "its prompt is not computed to its end: {prefilled}"
    );
}
