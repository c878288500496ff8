//! The preempted keep what they have computed in host memory; `A5*` in a trace is five tokens of request A, `*` where its
//! next token is sampled.

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{
    Config, KvGroup, events::EndReason, plan::PlanView, policy::Policy, scheduler::Next,
};

/// Five blocks of four tokens, too few for two requests of 16 tokens.
fn small(num_host_blocks: usize) -> Config {
    Config {
        num_blocks: 1 + 5,
        num_host_blocks,
        ..config(Policy::Continuous)
    }
}

#[test]
fn who_comes_back_goes_on_where_it_was() {
    let mut driver = Driver::new(small(8));
    let a = driver.add('A', 4, 12);
    let b = driver.add('B', 4, 12);
    // With 8 tokens each holds two blocks, and the next token of both needs a third: five are too few.
    let mut expected = vec!["A4* B4*"; 1];
    expected.extend(["A1* B1*"; 4]);
    expected.extend(["A1*"; 7]);
    expected.extend(["B1*"; 7]);
    assert_eq!(driver.trace(), expected);
    for (request, name) in [(a, 'A'), (b, 'B')] {
        let tokens = expected_tokens(&[name as i32; 4], 12);
        assert_eq!(driver.outcome(request).tokens, tokens);
    }
    let load = driver.load();
    assert_eq!((load.num_preemptions, load.num_swapped_tokens), (1, 8));
    assert_eq!(load.num_recomputed_tokens, 0);
    driver.assert_empty();
}

#[test]
fn what_is_copied_slower_than_computed_is_computed_again() {
    let mut driver = Driver::new(Config {
        swap_block_time: 1,
        ..small(8)
    });
    driver.add('A', 4, 12);
    let b = driver.add('B', 4, 12);
    driver.trace();
    let load = driver.load();
    assert_eq!(
        (load.num_swapped_tokens, load.num_recomputed_tokens),
        (0, 8)
    );
    let tokens = expected_tokens(&['B' as i32; 4], 12);
    assert_eq!(driver.outcome(b).tokens, tokens);
    driver.assert_empty();
}

#[test]
fn what_does_not_fit_into_host_memory_is_computed_again() {
    let mut driver = Driver::new(small(1));
    driver.add('A', 4, 12);
    driver.add('B', 4, 12);
    driver.trace();
    let load = driver.load();
    assert_eq!(
        (load.num_swapped_tokens, load.num_recomputed_tokens),
        (0, 8)
    );
    driver.assert_empty();
}

#[test]
fn who_ends_while_it_waits_gives_its_host_blocks_back() {
    let mut driver = Driver::new(small(8));
    driver.add('A', 4, 12);
    let b = driver.add('B', 4, 12);
    while driver.load().num_preemptions == 0 {
        driver.step();
    }
    assert_eq!(driver.load().num_free_host_blocks, 8 - 2);
    driver.scheduler.abort(0, b, EndReason::Cancelled);
    assert_eq!(driver.load().num_free_host_blocks, 8);
    driver.trace();
    driver.assert_empty();
}

#[test]
fn after_a_failed_step_nothing_in_host_memory_is_used() {
    let mut driver = Driver::new(small(8));
    driver.add('A', 4, 12);
    let b = driver.add('B', 4, 12);
    while driver.load().num_preemptions == 0 {
        driver.step();
    }
    driver.failing_step(&[]);
    assert_eq!(driver.load().num_free_host_blocks, 8);
    driver.trace();
    assert_eq!(driver.load().num_swapped_tokens, 0);
    let tokens = expected_tokens(&['B' as i32; 4], 12);
    assert_eq!(driver.outcome(b).tokens, tokens);
    driver.assert_empty();
}

#[test]
fn what_the_prefix_cache_still_knows_is_not_copied_back() {
    let mut driver = Driver::new(Config {
        prefix_cache: true,
        ..small(8)
    });
    let a = driver.add('A', 4, 12);
    let b = driver.add('B', 4, 12);
    let (mut num_out, mut num_in) = (0, 0);
    while let (Next::Run(step), _, plan) = driver.plan() {
        let view = PlanView::parse(&plan).expect("a plan");
        (num_out, num_in) = (num_out + view.swap_out.len(), num_in + view.swap_in.len());
        let sampled = driver.run(&plan);
        driver.update(step, &sampled);
        driver.collect();
    }
    // A's third and fourth block are a free one and the second of B.
    assert_eq!((num_out, num_in), (2, 1));
    assert_eq!(driver.load().num_swapped_tokens, 4);
    for (request, name) in [(a, 'A'), (b, 'B')] {
        let tokens = expected_tokens(&[name as i32; 4], 12);
        assert_eq!(driver.outcome(request).tokens, tokens);
    }
    assert_eq!(driver.load().num_recomputed_tokens, 0);
    driver.assert_empty();
}

#[test]
fn of_a_window_only_what_it_sees_is_kept() {
    let windows = [None, Some(4)];
    let groups = windows.map(|window| KvGroup { window });
    let mut driver = Driver::new(Config {
        num_blocks: 1 + 9,
        kv_groups: groups.to_vec(),
        ..small(16)
    });
    let a = driver.add('A', 4, 16);
    let b = driver.add('B', 4, 16);
    driver.trace();
    for (request, name) in [(a, 'A'), (b, 'B')] {
        let tokens = expected_tokens(&[name as i32; 4], 16);
        assert_eq!(driver.outcome(request).tokens, tokens);
    }
    let load = driver.load();
    assert!(
        load.num_preemptions > 0 && load.num_swapped_tokens > 0,
        "{load:?}"
    );
    assert_eq!(load.num_recomputed_tokens, 0);
    driver.assert_empty();
}
