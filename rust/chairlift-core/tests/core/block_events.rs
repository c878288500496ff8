//! What is told of the prefix cache, and of whose blocks.

use crate::driver::{Driver, config};
use chairlift_core::{
    Adapter, BlockEvent, BlockEventKind, BlockEvents, Config, KvGroup, Namespace, NewRequest,
    policy::Policy,
};

const SIZE: usize = 4;

fn cached() -> Config {
    Config {
        prefix_cache: true,
        ..config(Policy::Continuous)
    }
}

fn reported(config: Config, tenants: &[&str]) -> Driver {
    let mut driver = Driver::new(config);
    let tenants = tenants.iter().map(|&tenant| tenant.to_owned());
    driver.scheduler.report_blocks(tenants.collect());
    driver
}

fn request(tenant: &str, prompt: &[i32], adapter: Adapter) -> NewRequest {
    NewRequest {
        namespace: Namespace {
            tenant: tenant.into(),
            adapter,
            ..Namespace::default()
        },
        ..NewRequest::new(prompt.to_vec(), 1)
    }
}

fn run(driver: &mut Driver, new: NewRequest) -> BlockEvents {
    driver.add_request('A', new);
    driver.trace();
    driver.scheduler.take_block_events()
}

fn parents(events: &BlockEvents) -> Vec<(u64, Option<u64>)> {
    let parent = |event: &BlockEvent| match event.kind {
        BlockEventKind::Stored { parent, .. } => Some((event.handle, parent)),
        BlockEventKind::Removed => None,
    };
    events.list.iter().filter_map(parent).collect()
}

fn removed(events: &BlockEvents) -> Vec<u64> {
    let removed = events.list.iter();
    let removed = removed.filter(|event| event.kind == BlockEventKind::Removed);
    removed.map(|event| event.handle).collect()
}

#[test]
fn a_block_is_stored_behind_its_parent_with_its_tokens_and_removed_when_it_is_evicted() {
    let mut driver = reported(cached(), &[""]);
    let prompt: Vec<i32> = (0..3 * SIZE as i32).collect();
    let events = run(&mut driver, request("", &prompt, Adapter::default()));
    let stored = parents(&events);
    let [(first, None), (second, parent), (third, grandparent)] = stored[..] else {
        panic!("three blocks are stored, the first without a parent: {stored:?}");
    };
    assert_eq!((parent, grandparent), (Some(first), Some(second)));
    assert_eq!(events.tokens, prompt);
    assert_eq!(driver.scheduler.evict_cached(2), 2);
    let events = driver.scheduler.take_block_events();
    assert_eq!(removed(&events), [third, second]);
    assert_eq!(parents(&driver.scheduler.block_snapshot()), [(first, None)]);
    driver.check();
}

#[test]
fn blocks_that_are_given_out_again_are_removed_before_others_are_stored() {
    let mut driver = reported(
        Config {
            num_blocks: 4,
            ..cached()
        },
        &[""],
    );
    let first = run(&mut driver, request("", &[1; 2 * SIZE], Adapter::default()));
    let second = run(
        &mut driver,
        request("", &[2; 3 * SIZE - 1], Adapter::default()),
    );
    let mut gone: Vec<_> = parents(&first)
        .into_iter()
        .map(|(handle, _)| handle)
        .collect();
    gone.reverse();
    assert_eq!(removed(&second), gone);
    assert_eq!(parents(&second).len(), 2);
}

#[test]
fn only_requests_of_reported_tenants_without_a_salt_are_told_of() {
    let mut driver = reported(cached(), &["ann", "bob"]);
    let prompt = [7; SIZE];
    for tenant in ["", "an", "anna", "eve"] {
        let events = run(&mut driver, request(tenant, &prompt, Adapter::default()));
        assert_eq!(events, BlockEvents::default(), "{tenant}");
    }
    let mut salted = request("ann", &prompt, Adapter::default());
    salted.namespace.salt = "salt".into();
    assert_eq!(run(&mut driver, salted), BlockEvents::default());
    for (stream, tenant) in [(0, "ann"), (1, "bob")] {
        let events = run(&mut driver, request(tenant, &prompt, Adapter::default()));
        let streams: Vec<_> = events.list.iter().map(|event| event.stream).collect();
        assert_eq!(streams, [stream]);
    }
    driver.scheduler.evict_cached(usize::MAX);
    assert_eq!(driver.scheduler.take_block_events().list.len(), 2);
}

#[test]
fn nothing_is_told_before_it_is_asked_for() {
    let mut driver = Driver::new(cached());
    let events = run(&mut driver, request("", &[7; 2 * SIZE], Adapter::default()));
    assert_eq!(events, BlockEvents::default());
    assert_eq!(driver.scheduler.block_snapshot(), BlockEvents::default());
}

#[test]
fn handles_depend_on_the_key_and_fit_into_a_signed_integer() {
    let handle = |key: u8| {
        let mut driver = reported(
            Config {
                hash_key: [key; 32],
                ..cached()
            },
            &[""],
        );
        run(&mut driver, request("", &[7; SIZE], Adapter::default())).list[0].handle
    };
    assert_eq!(handle(1), handle(1));
    assert_ne!(handle(1), handle(2));
    assert!((1..40).all(|key| i64::try_from(handle(key)).is_ok()));
}

#[test]
fn a_snapshot_has_each_block_behind_its_parent() {
    let mut driver = reported(cached(), &[""]);
    for first in 0..3 {
        let mut prompt = vec![first; 5 * SIZE];
        run(&mut driver, request("", &prompt, Adapter::default()));
        prompt[3 * SIZE] = 99;
        run(&mut driver, request("", &prompt, Adapter::default()));
    }
    // Their blocks are used again in another order.
    driver.scheduler.evict_cached(9);
    run(
        &mut driver,
        request("", &[50; 7 * SIZE], Adapter::default()),
    );
    let stored = parents(&driver.scheduler.block_snapshot());
    let told = |before: usize| stored[..before].iter().map(|&(handle, _)| handle);
    for (place, &(_, parent)) in stored.iter().enumerate() {
        assert!(parent.is_none_or(|parent| told(place).any(|handle| handle == parent)));
    }
    assert_eq!(stored.len(), driver.load().num_cached_blocks);
}

#[test]
fn blocks_of_an_adapter_that_is_gone_are_removed_once() {
    let mut driver = reported(cached(), &[""]);
    let adapter = Adapter {
        slot: 2,
        generation: 5,
    };
    run(&mut driver, request("", &[7; SIZE], Adapter::default()));
    let events = run(&mut driver, request("", &[7; SIZE], adapter));
    let of_adapter = |event: &BlockEvent| {
        let parent = None;
        event.kind == BlockEventKind::Stored { parent, adapter }
    };
    assert!(events.list.iter().all(of_adapter));
    driver.scheduler.remove_adapter(2);
    let events = driver.scheduler.take_block_events();
    assert_eq!(removed(&events).len(), 1);
    driver.scheduler.evict_cached(usize::MAX);
    let events = driver.scheduler.take_block_events();
    assert_eq!(removed(&events).len(), 1, "that of the model alone");
}

#[test]
fn of_several_groups_the_one_without_a_window_is_told_of() {
    let window = KvGroup { window: Some(4) };
    let mut driver = reported(
        Config {
            kv_groups: vec![window, KvGroup { window: None }],
            ..cached()
        },
        &[""],
    );
    let prompt: Vec<i32> = (0..6 * SIZE as i32).collect();
    let events = run(&mut driver, request("", &prompt, Adapter::default()));
    assert_eq!(parents(&events).len(), 6);
    assert_eq!(events.tokens, prompt);
}
