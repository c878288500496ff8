//! KV groups with a window: what no later token sees is given back while the request runs.

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{Config, KvGroup, NewRequest, RefusalReason, policy::Policy};

/// Blocks of 4 tokens and a budget of 8: a request holds at most 4 blocks of a window of 6.
fn windowed(windows: &[Option<u32>], num_blocks: usize) -> Config {
    let groups = windows.iter().map(|&window| KvGroup { window });
    Config {
        kv_groups: groups.collect(),
        num_blocks: 1 + num_blocks,
        ..config(Policy::Continuous)
    }
}

#[test]
fn a_long_answer_fits_into_the_blocks_of_its_window() {
    let mut driver = Driver::new(windowed(&[Some(6)], 4));
    let a = driver.add('A', 40, 24);
    let mut max_in_use = 0;
    while driver.step() != "-" {
        driver.check();
        let load = driver.load();
        max_in_use = max_in_use.max(load.num_blocks - load.num_free_blocks);
    }
    assert!(max_in_use <= 4, "{max_in_use} blocks were in use");
    assert_eq!(
        driver.outcome(a).tokens,
        expected_tokens(&[i32::from(b'A'); 40], 24)
    );
    driver.assert_empty();
}

#[test]
fn a_decode_holds_the_blocks_that_it_sees_and_no_more() {
    let mut driver = Driver::new(windowed(&[None, Some(6)], 64));
    driver.add('A', 17, 8);
    (0..3).for_each(|_| assert_ne!(driver.step(), "-"));
    // 17 tokens are computed; the next sees from token 12 on: the window keeps blocks 3 and 4 of five.
    let load = driver.load();
    assert_eq!(load.num_kv_tokens, 17 + 5);
    assert_eq!(load.num_blocks - load.num_free_blocks, 5 + 2);
}

#[test]
fn the_pool_holds_longer_requests_where_groups_have_windows() {
    let max = |windows: &[Option<u32>], num_blocks| {
        Config {
            max_model_len: 1000,
            ..windowed(windows, num_blocks)
        }
        .max_context_len()
    };
    assert_eq!(max(&[None, None], 20), 40);
    assert_eq!(max(&[None, Some(6)], 20), 64);
    assert_eq!(max(&[Some(6), Some(6)], 8), 1000);
    assert_eq!(
        max(&[Some(6), Some(6)], 7),
        12,
        "too few for a window: its blocks count"
    );
}

#[test]
fn what_a_window_cannot_hold_is_refused() {
    let mut driver = Driver::new(windowed(&[None, Some(6)], 10));
    let refusal = driver.scheduler.add(0, NewRequest::new(vec![1; 24], 2));
    assert_eq!(
        refusal.map_err(|r| r.reason),
        Err(RefusalReason::KvCapacity)
    );
    driver.add('A', 24, 1);
    driver.trace();
    driver.assert_empty();
}

#[test]
fn only_what_a_window_holds_is_promised() {
    let mut driver = Driver::new(windowed(&[Some(6)], 9));
    driver.add('A', 40, 1);
    driver.add('B', 40, 1);
    driver.step();
    assert_eq!(driver.load().num_running, 1, "the budget is spent");
    driver.step();
    driver.check();
    for _ in 0..5 {
        driver.step();
    }
    assert_eq!(driver.load().num_preemptions, 0);
    driver.trace();
    assert_eq!(driver.load().num_preemptions, 0);
    driver.assert_empty();
}

#[test]
fn a_hit_needs_only_what_the_window_sees() {
    let mut driver = Driver::new(Config {
        prefix_cache: true,
        ..windowed(&[Some(4)], 20)
    });
    driver.add('A', 17, 1);
    driver.trace();
    // The first two of four full blocks are forgotten, the last one suffices.
    assert_eq!(driver.scheduler.evict_cached(2), 2);
    let b = driver.add_request('B', NewRequest::new(vec![i32::from(b'A'); 17], 3));
    assert_eq!(driver.step(), "B1*");
    driver.trace();
    assert_eq!(
        driver.outcome(b).tokens,
        expected_tokens(&[i32::from(b'A'); 17], 3)
    );
    assert_eq!(driver.load().num_prefix_hits, 4);
    driver.assert_empty();
}

#[test]
fn a_full_group_ends_the_hit_at_its_first_gap() {
    let mut driver = Driver::new(Config {
        prefix_cache: true,
        ..windowed(&[None, Some(4)], 20)
    });
    driver.add('A', 17, 1);
    driver.trace();
    // The window's first blocks went first; then the end of the full group's.
    assert_eq!(driver.scheduler.evict_cached(4), 4);
    driver.add_request('B', NewRequest::new(vec![i32::from(b'A'); 17], 1));
    assert_ne!(driver.step(), "B1*");
    driver.trace();
    driver.assert_empty();
}
