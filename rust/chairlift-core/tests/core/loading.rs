//! Blocks outlive the pool in a store, and come back to requests that wait for them.

use std::collections::HashMap;

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{
    Adapter, Config, KvGroup, MissingBlocks, Namespace, NewRequest, RequestId, StoredName,
    events::EndReason,
    policy::Policy,
    scheduler::{Change, RequestState},
};

mod windows;

const SIZE: usize = 4;

fn cached() -> Config {
    Config {
        prefix_cache: true,
        ..config(Policy::Continuous)
    }
}

/// A driver, and what a store has of its blocks.
struct Stored {
    driver: Driver,
    store: HashMap<StoredName, Vec<u64>>,
}

/// What a store on a disk has: the blocks of these names.
struct Disk<'s>(&'s HashMap<StoredName, Vec<u64>>);

impl chairlift_core::Stored for Disk<'_> {
    fn has_block(&self, name: &StoredName) -> bool {
        self.0.contains_key(name)
    }

    fn has_state(&self, _: &StoredName) -> bool {
        unreachable!("the model has no states")
    }
}

impl Stored {
    fn new(config: Config) -> Self {
        let mut driver = Driver::new(config);
        driver.scheduler.track_block_uses();
        Self {
            driver,
            store: HashMap::new(),
        }
    }

    /// The same store beside a new scheduler and an empty memory.
    fn restart(self, config: Config) -> Self {
        Self {
            store: self.store,
            ..Self::new(config)
        }
    }

    /// Copies what is used to the store; returns the uses by name, and which were hits.
    fn keep(&mut self) -> Vec<(StoredName, bool)> {
        let uses = self.driver.scheduler.take_block_uses();
        for used in &uses {
            let content = self.driver.block_mut(used.block).to_vec();
            self.store.insert(used.name, content);
        }
        uses.iter().map(|used| (used.name, used.is_hit)).collect()
    }

    fn run(&mut self) -> Vec<(StoredName, bool)> {
        let mut uses = Vec::new();
        while self.driver.step() != "-" {
            uses.extend(self.keep());
            self.driver.check();
        }
        uses
    }

    fn add(&mut self, new: NewRequest) -> RequestId {
        self.driver.add_request('A', new)
    }

    /// Leading blocks that a request lacks and the store has.
    fn num_stored(&mut self, request: RequestId) -> usize {
        let missing = self.driver.scheduler.missing_blocks(request);
        let names = missing.names.iter();
        names
            .take_while(|name| self.store.contains_key(*name))
            .count()
    }

    /// Inserts `count` blocks of a held request from the `place`-th missing one on, and fills them.
    fn load(&mut self, request: RequestId, names: &[StoredName], first: usize) -> Vec<u32> {
        let now = self
            .driver
            .scheduler
            .insert_blocks(request, first, names.len());
        let blocks = now.expect("it is held");
        for (&block, name) in blocks.iter().zip(names) {
            if block != 0 {
                let content = &self.store[name];
                self.driver.block_mut(block).copy_from_slice(content);
            }
        }
        self.driver.check();
        blocks
    }

    /// Adds a request, loads what the store has of it, and lets it go.
    fn add_loaded(&mut self, new: NewRequest) -> (RequestId, usize) {
        let request = self.add(new);
        let missing = self.driver.scheduler.missing_blocks(request);
        let count = self.num_stored(request);
        if count > 0 {
            assert!(self.driver.scheduler.hold(0, request));
            assert_eq!(self.driver.step(), "-", "it waits");
            self.load(request, &missing.names[..count], missing.number);
            self.driver.scheduler.release_held(0, request);
        }
        (request, count)
    }

    /// The beginning of a request that could be loaded.
    fn beginning(&mut self, request: RequestId) -> MissingBlocks {
        let disk = Disk(&self.store);
        self.driver.scheduler.stored_blocks(request, &disk)
    }

    fn tokens(&self, request: RequestId) -> &[i32] {
        &self.driver.outcome(request).tokens
    }
}

fn prompt(num_tokens: i32) -> Vec<i32> {
    (1..=num_tokens).collect()
}

fn of_tenant(tenant: &str, tokens: Vec<i32>) -> NewRequest {
    NewRequest {
        namespace: Namespace {
            tenant: tenant.into(),
            ..Namespace::default()
        },
        ..NewRequest::new(tokens, 6)
    }
}

#[test]
fn a_prompt_is_loaded_after_a_restart_and_gives_the_same_tokens() {
    let mut stored = Stored::new(cached());
    let new = || of_tenant("t", prompt(30));
    stored.add(new());
    let uses = stored.run();
    assert_eq!(uses.len(), 35 / SIZE, "the answer's blocks, too");
    assert!(uses.iter().all(|(_, is_hit)| !is_hit));
    let mut stored = stored.restart(cached());
    let (request, num_loaded) = stored.add_loaded(new());
    assert_eq!(num_loaded, 29 / SIZE);
    let uses = stored.run();
    assert_eq!(stored.tokens(request), expected_tokens(&prompt(30), 6));
    assert_eq!(uses.iter().filter(|(_, is_hit)| *is_hit).count(), 29 / SIZE);
    let load = stored.driver.load();
    assert_eq!(load.num_prefix_hits, (29 / SIZE) as u64);
    stored.driver.assert_empty();
}

#[test]
fn what_was_evicted_is_loaded_behind_what_was_not() {
    let mut stored = Stored::new(cached());
    let first = stored.add(of_tenant("t", prompt(30)));
    stored.run();
    assert_eq!(stored.driver.scheduler.evict_cached(5), 5);
    let (second, num_loaded) = stored.add_loaded(of_tenant("t", prompt(30)));
    assert_eq!(
        num_loaded,
        29 / SIZE - 3,
        "8 blocks were cached, 5 are gone"
    );
    stored.run();
    assert_eq!(stored.tokens(first), stored.tokens(second));
}

#[test]
fn a_tenant_a_salt_an_adapter_and_a_key_of_its_own_find_nothing_of_others() {
    let mut stored = Stored::new(cached());
    stored.add(of_tenant("t", prompt(30)));
    stored.run();
    stored.driver.scheduler.evict_cached(usize::MAX);
    let mut count = |tenant: &str, salt: &str, slot| {
        let mut new = of_tenant(tenant, prompt(30));
        new.namespace.salt = salt.into();
        new.namespace.adapter = Adapter {
            slot,
            generation: 0,
        };
        let request = stored.add(new);
        let count = stored.num_stored(request);
        stored
            .driver
            .scheduler
            .abort(0, request, EndReason::Cancelled);
        stored.driver.collect();
        count
    };
    assert_eq!(count("t", "", 0), 7);
    for (tenant, salt, slot) in [("u", "", 0), ("", "t", 0), ("t", "s", 0), ("t", "", 1)] {
        assert_eq!(count(tenant, salt, slot), 0, "{tenant:?} {salt:?} {slot}");
    }
    let mut stored = stored.restart(Config {
        hash_key: [9; 32],
        ..cached()
    });
    let request = stored.add(of_tenant("t", prompt(30)));
    assert_eq!(stored.num_stored(request), 0);
}

#[test]
fn blocks_of_an_adapter_and_of_a_request_that_does_not_publish_are_not_told() {
    let mut stored = Stored::new(cached());
    let mut adapted = of_tenant("t", prompt(30));
    adapted.namespace.adapter.slot = 1;
    stored.add(adapted);
    stored.add(NewRequest {
        cache_write: false,
        ..of_tenant("t", prompt(30))
    });
    assert_eq!(stored.run(), []);
}

#[test]
fn a_held_request_waits_in_any_company_and_ends_like_any_other() {
    let mut stored = Stored::new(cached());
    let held = stored.add(NewRequest {
        queue_deadline: Some(100),
        ..of_tenant("t", prompt(30))
    });
    let other = stored.add(of_tenant("t", prompt(5)));
    assert!(stored.driver.scheduler.hold(0, held));
    assert!(!stored.driver.scheduler.hold(0, held), "it is in no queue");
    let explained = stored.driver.scheduler.explain(held).expect("it is live");
    assert_eq!(explained.state, RequestState::Suspended);
    stored.driver.change(
        held,
        Change {
            paused: Some(false),
            ..Change::default()
        },
    );
    stored.run();
    assert_eq!(stored.tokens(other).len(), 6);
    assert!(stored.tokens(held).is_empty());
    stored.driver.now = 100;
    stored.run();
    assert!(
        stored.driver.outcome(held).end.is_some(),
        "its time is over"
    );
    assert_eq!(stored.driver.scheduler.insert_blocks(held, 0, 3), None);
    stored.driver.scheduler.release_held(0, held);
    stored.driver.assert_empty();
}

#[test]
fn a_request_that_was_let_go_or_has_a_row_takes_no_blocks() {
    let mut stored = Stored::new(cached());
    let request = stored.add(of_tenant("t", prompt(30)));
    assert!(stored.driver.scheduler.hold(0, request));
    stored.driver.scheduler.release_held(0, request);
    assert_eq!(stored.driver.scheduler.insert_blocks(request, 0, 3), None);
    stored.driver.step();
    assert!(!stored.driver.scheduler.hold(0, request), "it has a row");
    assert!(
        stored
            .driver
            .scheduler
            .missing_blocks(request)
            .names
            .is_empty()
    );
    stored.run();
    assert_eq!(stored.tokens(request), expected_tokens(&prompt(30), 6));
}

#[test]
fn loaded_blocks_take_free_memory_alone_and_evict_the_prefix_that_they_follow_last() {
    let mut stored = Stored::new(cached());
    stored.add(of_tenant("t", prompt(40)));
    stored.run();
    let mut stored = stored.restart(Config {
        num_blocks: 15,
        ..cached()
    });
    // Holds 6 of 14 blocks, of which 4 are promised.
    let running = stored.add(NewRequest::new(vec![500; 8], 15));
    stored.driver.step();
    let held = stored.add(of_tenant("t", prompt(40)));
    let missing = stored.driver.scheduler.missing_blocks(held);
    assert!(stored.driver.scheduler.hold(0, held));
    for (place, name) in missing.names.iter().enumerate() {
        let blocks = stored.load(held, &[*name], place);
        assert_eq!(blocks.len(), 1);
        assert_ne!(blocks[0], 0);
    }
    let known: Vec<_> = (0..missing.names.len())
        .map(|place| stored.load(held, &missing.names[place..=place], place)[0] == 0)
        .collect();
    assert!(known[0], "the first block stays: {known:?}");
    stored.driver.scheduler.release_held(0, held);
    stored.run();
    assert_eq!(stored.tokens(held), expected_tokens(&prompt(40), 6));
    assert_eq!(
        stored.tokens(running),
        expected_tokens(&[500; 8], 15),
        "promises hold"
    );
    stored.driver.assert_empty();
}

#[test]
fn a_block_that_is_known_by_now_is_not_inserted_again() {
    let mut stored = Stored::new(cached());
    stored.add(of_tenant("t", prompt(30)));
    stored.run();
    let mut stored = stored.restart(cached());
    let held = stored.add(of_tenant("t", prompt(30)));
    let missing = stored.driver.scheduler.missing_blocks(held);
    assert!(stored.driver.scheduler.hold(0, held));
    stored.add(of_tenant("t", prompt(30)));
    stored.run();
    let blocks = stored.load(held, &missing.names[..3], 0);
    assert_eq!(blocks, [0, 0, 0]);
    stored.driver.scheduler.release_held(0, held);
    stored.run();
    assert_eq!(stored.tokens(held), expected_tokens(&prompt(30), 6));
}

#[test]
fn what_came_from_outside_is_billed_if_it_was_there_when_the_request_began() {
    let mut stored = Stored::new(cached());
    let first = stored.add(of_tenant("t", prompt(30)));
    stored.run();
    let billed = |stored: &Stored, request| {
        let stats = stored.driver.outcome(request).stats.expect("it has ended");
        (stats.cached_tokens, stats.transferred_tokens)
    };
    assert_eq!(billed(&stored, first), (0, 0));
    stored.driver.scheduler.evict_cached(5);
    let (second, num_loaded) = stored.add_loaded(of_tenant("t", prompt(30)));
    stored.run();
    assert_eq!(billed(&stored, second), (28, num_loaded * SIZE));
    let (third, _) = stored.add_loaded(of_tenant("t", prompt(30)));
    stored.run();
    assert_eq!(billed(&stored, third), (28, 0), "the pool had all of it");
    stored.driver.scheduler.evict_cached(usize::MAX);
    let (fourth, _) = stored.add_loaded(of_tenant("t", prompt(30)));
    stored.driver.scheduler.evict_cached(2);
    stored.run();
    assert_eq!(billed(&stored, fourth), (20, 20), "two blocks went again");
}

#[test]
fn the_blocks_of_a_new_request_have_names_by_which_they_are_told() {
    let mut stored = Stored::new(cached());
    let request = stored.add(of_tenant("t", prompt(30)));
    let names = stored.driver.scheduler.block_names(request, 0).names;
    assert_eq!(names.len(), 29 / SIZE);
    let told: Vec<_> = stored.run().into_iter().map(|(name, _)| name).collect();
    assert!(names.iter().all(|name| told.contains(name)));
    let again = stored.driver.scheduler.block_names(request, 0).names;
    assert_eq!(again, Vec::<StoredName>::new(), "it is not new any more");
    let mut silent = of_tenant("t", prompt(30));
    silent.cache_write = false;
    let request = stored.add(silent);
    let names = stored.driver.scheduler.block_names(request, 0).names;
    assert!(names.is_empty());
}

#[test]
fn nothing_is_predicted_before_a_step_was_measured() {
    let stored = Stored::new(cached());
    assert_eq!(stored.driver.scheduler.predict_prompt(0, 100), None);
}
