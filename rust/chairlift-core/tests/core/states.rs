//! Recurrent states: where a step saves the state of a row, and which requests begin with it. The simulator checks their
//! values.

use chairlift_core::{Config, NewRequest, policy::Policy};

use crate::driver::{Driver, config};

/// Blocks of four, a budget of 32, `num_snapshots` snapshots.
fn hybrid(num_snapshots: usize) -> Config {
    Config {
        max_num_batched_tokens: 32,
        state_snapshots: Some(num_snapshots),
        prefix_cache: true,
        max_step_drafts: 0,
        ..config(Policy::Continuous)
    }
}

fn tokens(first: i32, count: i32) -> Vec<i32> {
    (first..first + count).collect()
}

#[test]
fn a_prompt_stops_at_its_last_boundary_and_the_next_equal_one_begins_there() {
    let mut driver = Driver::new(hybrid(8));
    driver.add('A', 11, 2);
    assert_eq!(driver.trace(), ["A8", "A3*", "A1*"]);
    driver.add('A', 11, 2);
    assert_eq!(driver.trace(), ["A3*", "A1*"]);
    driver.assert_empty();
}

#[test]
fn the_second_turn_of_a_conversation_begins_behind_the_last_block_of_the_answer() {
    let mut driver = Driver::new(hybrid(8));
    let prompt = tokens(0, 6);
    let first = driver.add_request('A', NewRequest::new(prompt.clone(), 9));
    assert_eq!(driver.trace()[..2], ["A4", "A2*"]);
    let answer = driver.outcome(first).tokens.clone();
    let second = [prompt, answer, tokens(100, 3)].concat();
    assert_eq!(second.len(), 18);
    driver.add_request('B', NewRequest::new(second, 1));
    // 14 tokens of the first turn were computed: 12 are full blocks, and known with their state.
    assert_eq!(driver.trace(), ["B4", "B2*"]);
    driver.assert_empty();
}

#[test]
fn a_growing_answer_has_one_snapshot() {
    let mut driver = Driver::new(hybrid(8));
    driver.add('A', 5, 40);
    driver.trace();
    // One behind the prompt, one behind the answer.
    assert_eq!(driver.load().num_state_snapshots, 2);
}

#[test]
fn the_third_prompt_begins_where_the_first_two_branch_off() {
    let mut driver = Driver::new(hybrid(8));
    let prompt = |user: i32| [tokens(0, 8), tokens(100 * user, 9)].concat();
    driver.add_request('A', NewRequest::new(prompt(1), 1));
    assert_eq!(driver.trace(), ["A16", "A1*"]);
    // Its first two blocks are known, and no state behind them.
    driver.add_request('B', NewRequest::new(prompt(2), 1));
    assert_eq!(driver.trace(), ["B8", "B8", "B1*"]);
    driver.add_request('C', NewRequest::new(prompt(3), 1));
    assert_eq!(driver.trace(), ["C8", "C1*"]);
    driver.assert_empty();
}

#[test]
fn a_state_is_forgotten_with_its_block() {
    let mut driver = Driver::new(hybrid(8));
    driver.add('A', 9, 1);
    driver.trace();
    assert_eq!(driver.load().num_state_snapshots, 1);
    assert_eq!(driver.scheduler.evict_cached(1), 1);
    assert_eq!(driver.load().num_state_snapshots, 0);
    driver.add('A', 9, 1);
    assert_eq!(
        driver.trace()[..2],
        ["A4", "A4"],
        "the first block is a junction"
    );
}

#[test]
fn no_more_snapshots_are_kept_than_there_is_memory_for() {
    let mut driver = Driver::new(hybrid(2));
    for name in ['A', 'B', 'C', 'D'] {
        driver.add(name, 9, 1);
    }
    driver.trace();
    assert_eq!(driver.load().num_state_snapshots, 2);
    driver.assert_empty();
}

#[test]
fn a_request_that_does_not_write_the_cache_is_not_cut() {
    let mut driver = Driver::new(hybrid(8));
    let mut new = NewRequest::new(tokens(0, 11), 1);
    new.cache_write = false;
    driver.add_request('A', new);
    assert_eq!(driver.trace(), ["A11*"]);
    assert_eq!(driver.load().num_state_snapshots, 0);
}

#[test]
fn siblings_wait_for_the_last_token_of_the_prompt_alone() {
    let mut driver = Driver::new(hybrid(0));
    let mut new = NewRequest::new(tokens(0, 11), 2);
    new.num_sequences = 3;
    driver.add_request('A', new);
    assert_eq!(driver.step(), "A10");
    assert_eq!(driver.step(), "A1*");
}

#[test]
fn drafts_and_host_memory_are_refused() {
    let refused = |config: Config| {
        let table = crate::driver::token_table();
        let refused = chairlift_core::Scheduler::new(config, table).err();
        refused.map(|error| error.name)
    };
    let drafts = Config {
        max_step_drafts: 1,
        ..hybrid(1)
    };
    let host = Config {
        num_host_blocks: 1,
        ..hybrid(1)
    };
    assert_eq!(refused(drafts), Some("max_step_drafts"));
    assert_eq!(refused(host), Some("num_host_blocks"));
}
