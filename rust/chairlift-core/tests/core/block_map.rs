//! How the blocks of the pool are used, as each tenant sees it; `check_invariants` counts them anew after each step.

use crate::driver::{Driver, config};
use chairlift_core::{CellUse, Config, Namespace, NewRequest, policy::Policy};

/// Sums over all cells: held, own, shared, cached, free.
fn used(driver: &Driver, tenant: &str) -> [u32; 5] {
    let cells = driver.scheduler.block_map(tenant);
    let of = |count: fn(&CellUse) -> u32| cells.iter().map(count).sum();
    [
        of(|cell| cell.held),
        of(|cell| cell.held_by_tenant),
        of(|cell| cell.shared),
        of(|cell| cell.cached),
        of(|cell| cell.free),
    ]
}

fn of_tenant(tenant: &str, prompt: Vec<i32>, max_tokens: usize) -> NewRequest {
    NewRequest {
        namespace: Namespace {
            tenant: tenant.into(),
            ..Namespace::default()
        },
        ..NewRequest::new(prompt, max_tokens)
    }
}

fn driver(num_blocks: usize) -> Driver {
    Driver::new(Config {
        num_blocks,
        prefix_cache: true,
        ..config(Policy::Continuous)
    })
}

#[test]
fn each_tenant_sees_its_own_blocks_among_those_that_are_held() {
    let mut driver = driver(21);
    let size = driver.scheduler.config().block_size;
    driver.add_request('A', of_tenant("ann", vec![1; 2 * size - 1], 8));
    driver.add_request('B', of_tenant("bob", vec![2; size - 1], 8));
    driver.step();
    driver.step();
    assert_eq!(used(&driver, "ann"), [3, 2, 0, 0, 17]);
    assert_eq!(used(&driver, "bob"), [3, 1, 0, 0, 17]);
    assert_eq!(used(&driver, "unknown"), [3, 0, 0, 0, 17]);
    driver.check();
}

#[test]
fn blocks_of_an_ended_request_are_cached_until_they_are_given_out_again() {
    let mut driver = driver(6);
    let size = driver.scheduler.config().block_size;
    driver.add_request('A', of_tenant("ann", vec![1; 2 * size], 1));
    driver.trace();
    assert_eq!(used(&driver, "ann"), [0, 0, 0, 2, 3]);
    assert_eq!(driver.scheduler.evict_cached(1), 1);
    assert_eq!(used(&driver, "ann"), [0, 0, 0, 1, 4]);
    driver.add_request('B', of_tenant("bob", vec![2; 5 * size], 1));
    driver.step();
    driver.step();
    driver.check();
    driver.trace();
    let [held, unshared, _, _, _] = used(&driver, "ann");
    assert_eq!((held, unshared), (0, 0));
    driver.check();
}

#[test]
fn a_prompt_that_is_known_is_shared() {
    let mut driver = driver(21);
    let size = driver.scheduler.config().block_size;
    driver.add_request('A', of_tenant("ann", vec![1; 2 * size + 1], 9));
    driver.step();
    driver.step();
    driver.step();
    driver.add_request('B', of_tenant("ann", vec![1; 2 * size + 1], 9));
    driver.step();
    let [held, unshared, shared, ..] = used(&driver, "ann");
    assert_eq!((held, unshared, shared), (4, 4, 2));
    assert_eq!(driver.load().num_prefix_hit_tokens, 2 * size as u64);
}
