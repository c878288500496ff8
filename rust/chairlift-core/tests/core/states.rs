//! Recurrent states: where a step saves the state of a row, and which requests begin with it. The simulator checks their
//! values.

use chairlift_core::{
    Config, MissingBlocks, NewRequest, RequestId, Stored, StoredName, policy::Policy,
};

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

/// A prompt of two full blocks, held by a new scheduler that knows nothing of it.
fn held(config: Config) -> (Driver, RequestId, MissingBlocks) {
    let mut driver = Driver::new(config);
    driver.scheduler.track_block_uses();
    let request = driver.add('A', 11, 2);
    let missing = driver.scheduler.missing_blocks(request);
    assert!(driver.scheduler.hold(0, request));
    (driver, request, missing)
}

#[test]
fn the_state_behind_a_prompt_is_told_and_another_scheduler_begins_with_it() {
    let mut first = Driver::new(hybrid(8));
    first.scheduler.track_block_uses();
    let request = first.add('A', 11, 2);
    let name = first.scheduler.block_names(request, 0).state;
    assert!(name.is_some());
    first.trace();
    let told = first.scheduler.take_state_uses();
    assert_eq!(
        told.iter().filter(|used| Some(used.name) == name).count(),
        1
    );
    first.add('A', 11, 2);
    first.trace();
    let told = first.scheduler.take_state_uses();
    assert!(
        told.iter().any(|used| Some(used.name) == name),
        "it was read"
    );

    let (mut second, request, missing) = held(hybrid(8));
    assert_eq!((missing.names.len(), missing.state), (2, name));
    let blocks = second.scheduler.insert_blocks(request, 0, 2);
    assert_eq!(blocks.map(|blocks| blocks.len()), Some(2));
    assert!(second.scheduler.insert_state(request).is_some());
    second.scheduler.release_held(0, request);
    assert_eq!(second.trace(), ["A3*", "A1*"]);
    let stats = second.outcome(request).stats.expect("it has ended");
    assert_eq!((stats.cached_tokens, stats.transferred_tokens), (8, 8));
    second.assert_empty();
}

#[test]
fn blocks_that_are_known_without_a_state_are_told_when_they_are_computed_again() {
    let (mut driver, request, missing) = held(hybrid(8));
    driver.scheduler.insert_blocks(request, 0, 2);
    driver.scheduler.take_block_uses();
    driver.scheduler.release_held(0, request);
    driver.trace();
    let told = driver.scheduler.take_block_uses();
    for name in &missing.names {
        assert!(told.iter().any(|used| used.name == *name && !used.is_hit));
    }
}

#[test]
fn blocks_that_come_without_their_state_are_computed_again() {
    let (mut driver, request, _) = held(hybrid(8));
    driver.scheduler.insert_blocks(request, 0, 2);
    driver.scheduler.release_held(0, request);
    assert_eq!(driver.trace(), ["A8", "A3*", "A1*"]);
    let stats = driver.outcome(request).stats.expect("it has ended");
    assert_eq!((stats.cached_tokens, stats.transferred_tokens), (0, 0));
}

#[test]
fn a_state_is_inserted_once_behind_blocks_that_are_known_for_a_request_that_is_held() {
    let (mut driver, request, _) = held(hybrid(8));
    assert_eq!(driver.scheduler.insert_state(request), None, "no block");
    driver.scheduler.insert_blocks(request, 0, 2);
    assert!(driver.scheduler.insert_state(request).is_some());
    assert_eq!(driver.scheduler.insert_state(request), None, "it is known");
    driver.check();
    driver.scheduler.release_held(0, request);
    assert_eq!(
        driver.scheduler.insert_state(request),
        None,
        "it is not held"
    );
    driver.scheduler.evict_cached(usize::MAX);
    driver.check();
    assert_eq!(driver.trace(), ["A8", "A3*", "A1*"]);
}

#[test]
fn a_scheduler_without_memory_for_snapshots_lacks_nothing_that_others_have() {
    let (_, _, missing) = held(hybrid(0));
    assert_eq!(missing, MissingBlocks::default());
}

/// What a store has of blocks and of states.
#[derive(Default)]
struct Disk {
    blocks: Vec<StoredName>,
    states: Vec<StoredName>,
}

impl Stored for Disk {
    fn has_block(&self, name: &StoredName) -> bool {
        self.blocks.contains(name)
    }

    fn has_state(&self, name: &StoredName) -> bool {
        self.states.contains(name)
    }
}

impl Disk {
    fn keep(&mut self, driver: &mut Driver) {
        let blocks = driver.scheduler.take_block_uses();
        self.blocks.extend(blocks.iter().map(|used| used.name));
        let states = driver.scheduler.take_state_uses();
        self.states.extend(states.iter().map(|used| used.name));
    }
}

/// The blocks and states of a turn of a conversation, and the prompt of the next one.
fn first_turn(new: impl FnOnce(&mut NewRequest)) -> (Disk, Vec<i32>) {
    let mut driver = Driver::new(hybrid(8));
    driver.scheduler.track_block_uses();
    let prompt = tokens(0, 6);
    let mut request = NewRequest::new(prompt.clone(), 9);
    new(&mut request);
    let request = driver.add_request('A', request);
    driver.trace();
    let mut disk = Disk::default();
    disk.keep(&mut driver);
    let answer = driver.outcome(request).tokens.clone();
    (disk, [prompt, answer, tokens(100, 3)].concat())
}

#[test]
fn a_longer_prompt_begins_behind_the_last_state_that_a_store_has() {
    let (mut disk, second) = first_turn(|_| ());
    assert_eq!(
        disk.states.len(),
        2,
        "behind the prompt, and the last one behind the answer"
    );
    for (num_states, num_indices) in [(2, 3), (1, 1), (0, 0)] {
        disk.states.truncate(num_states);
        let mut driver = Driver::new(hybrid(8));
        driver.scheduler.track_block_uses();
        let request = driver.add_request('B', NewRequest::new(second.clone(), 1));
        let missing = driver.scheduler.stored_blocks(request, &disk);
        assert_eq!((missing.first, missing.num_indices), (0, num_indices));
        assert_eq!(missing.state, disk.states.last().copied());
        if num_states == 0 {
            continue;
        }
        assert!(driver.scheduler.hold(0, request));
        driver.scheduler.insert_blocks(request, 0, num_indices);
        assert!(driver.scheduler.insert_state(request).is_some());
        driver.scheduler.release_held(0, request);
        driver.trace();
        let stats = driver.outcome(request).stats.expect("it has ended");
        assert_eq!(stats.cached_tokens, 4 * num_indices);
        driver.assert_empty();
    }
}

#[test]
fn states_of_an_adapter_and_of_a_request_that_does_not_publish_are_not_told() {
    let (disk, _) = first_turn(|new| new.namespace.adapter.slot = 1);
    assert!(disk.states.is_empty());
    let (disk, _) = first_turn(|new| new.cache_write = false);
    assert!(disk.states.is_empty());
}
