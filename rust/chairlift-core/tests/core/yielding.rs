//! Rows that a tenant beyond its fair share yields, as step traces.

use crate::driver::{Driver, config};
use chairlift_core::{NewRequest, policy::Policy};

fn of(tenant: &str, num_prompt: usize, max_tokens: usize) -> NewRequest {
    let mut new = NewRequest::new(vec![1; num_prompt], max_tokens);
    tenant.clone_into(&mut new.namespace.tenant);
    new
}

fn several(tenant: &str, num_prompt: usize, max_tokens: usize, num: usize) -> NewRequest {
    let mut new = of(tenant, num_prompt, max_tokens);
    new.num_sequences = num;
    new
}

/// Eight rows.
fn driver(policy: Policy) -> Driver {
    let mut config = config(policy);
    (config.max_num_seqs, config.max_num_batched_tokens) = (8, 16);
    (config.num_blocks, config.max_queued_requests) = (256, 64);
    Driver::new(config)
}

fn num_in(step: &str, name: char) -> usize {
    step.split(' ')
        .filter(|part| part.starts_with(name))
        .count()
}

#[test]
fn a_sequence_of_a_request_that_has_all_rows_yields_to_another_tenant() {
    let mut driver = driver(Policy::Continuous);
    driver.add_request('A', several("greedy", 2, 40, 8));
    for _ in 0..4 {
        driver.step();
    }
    driver.add_request('Q', of("quiet", 1, 1));
    let step = driver.step();
    assert!(step.ends_with("Q1*"), "{step}");
    assert_eq!(num_in(&step, 'A'), 7, "{step}");
}

#[test]
fn many_requests_of_one_tenant_yield_as_sequences_do() {
    let mut driver = driver(Policy::Continuous);
    for name in 'A'..='H' {
        driver.add_request(name, of("greedy", 1, 40));
    }
    driver.step();
    driver.add_request('Q', of("quiet", 1, 1));
    assert!(driver.step().ends_with("Q1*"));
}

#[test]
fn a_tenant_yields_no_more_than_it_has_beyond_its_share() {
    let mut driver = driver(Policy::Continuous);
    driver.add_request('A', several("greedy", 1, 90, 8));
    driver.step();
    driver.step();
    for name in 'Q'..='V' {
        driver.add_request(name, of("quiet", 1, 90));
    }
    for _ in 0..8 {
        driver.step();
    }
    let step = driver.step();
    assert_eq!(num_in(&step, 'A'), 4, "{step}");
}

#[test]
fn sequences_that_wait_for_their_prompt_yield_first_and_alone() {
    let mut driver = driver(Policy::Continuous);
    driver.add_request('A', several("greedy", 50, 9, 8));
    driver.step();
    driver.add_request('Q', of("quiet", 1, 1));
    // The oldest prompt goes on, and one of those that wait for it gave its row away.
    assert_eq!([driver.step(), driver.step()], ["A16", "A16"]);
    assert_eq!(driver.step(), "A2* Q1*");
    assert_eq!(driver.scheduler.load().num_preemptions, 1);
    assert_eq!(num_in(&driver.step(), 'A'), 8, "it has come back");
}

#[test]
fn what_has_yielded_waits_behind_what_the_other_tenant_sends() {
    let mut driver = driver(Policy::Continuous);
    driver.add_request('A', several("greedy", 1, 60, 8));
    driver.step();
    driver.step();
    for name in 'Q'..='T' {
        driver.add_request(name, of("quiet", 1, 3));
    }
    let num_preemptions = |driver: &Driver| driver.scheduler.load().num_preemptions;
    let mut names = ('a'..='z').cycle();
    for _ in 0..4 {
        driver.step();
    }
    let before = num_preemptions(&driver);
    for _ in 0..20 {
        driver.add_request(names.next().unwrap_or('a'), of("quiet", 1, 3));
        driver.step();
    }
    assert_eq!(num_preemptions(&driver), before, "rows move one way");
}

#[test]
fn a_batch_of_a_batched_policy_yields_nothing() {
    let mut driver = driver(Policy::Batched {
        size: 8,
        patience: 1,
    });
    driver.add_request('A', several("greedy", 1, 20, 8));
    driver.step();
    driver.add_request('Q', of("quiet", 1, 1));
    let step = driver.step();
    assert_eq!((num_in(&step, 'A'), num_in(&step, 'Q')), (8, 0), "{step}");
}

#[test]
fn one_of_many_of_a_caller_stands_behind_what_comes_a_little_later() {
    let mut driver = driver(Policy::Continuous);
    for name in 'A'..='H' {
        driver.add_request(name, of("", 1, 4));
    }
    driver.step();
    for (name, delay) in [('I', 0), ('J', 1_000_000_000)] {
        let mut new = of("", 1, 1);
        new.turn_delay = delay;
        driver.add_request(name, new);
    }
    driver.add_request('Q', of("", 1, 1));
    for _ in 0..3 {
        driver.step();
    }
    assert_eq!(driver.step(), "I1* Q1* J1*");
}

/// Four rows, and one block for each of four requests.
fn short_of_blocks() -> Driver {
    let mut config = config(Policy::Continuous);
    (config.max_num_batched_tokens, config.num_blocks) = (16, 5);
    Driver::new(config)
}

#[test]
fn a_block_is_taken_from_a_tenant_beyond_its_share() {
    let mut driver = short_of_blocks();
    driver.add_request('A', of("greedy", 3, 4));
    assert_eq!(driver.step(), "A3*");
    for (name, new) in [
        ('Q', of("quiet", 1, 4)),
        ('B', of("greedy", 3, 4)),
        ('C', of("greedy", 3, 4)),
    ] {
        driver.add_request(name, new);
    }
    assert_eq!(driver.step(), "A1* Q1* B3* C3*");
    // Q would lose least.
    assert_eq!(driver.step(), "A1* Q1* B1*");
}

#[test]
fn a_request_of_a_tenant_beyond_its_share_gives_its_own_row_up_before_it_takes_that_of_another() {
    let mut driver = short_of_blocks();
    for (name, num_prompt) in [('A', 1), ('B', 1), ('C', 3)] {
        driver.add_request(name, of("greedy", num_prompt, 4));
    }
    assert_eq!(driver.step(), "A1* B1* C3*");
    driver.add_request('Q', of("quiet", 1, 4));
    assert_eq!(driver.step(), "A1* B1* C1* Q1*");
    assert_eq!(driver.step(), "A1* B1* Q1*");
}

#[test]
fn one_tenant_alone_preempts_as_the_order_says() {
    let mut driver = short_of_blocks();
    driver.add_request('A', of("", 3, 3));
    assert_eq!(driver.step(), "A3*");
    for (name, num_prompt) in [('Q', 1), ('B', 3), ('C', 3)] {
        driver.add_request(name, of("", num_prompt, 3));
    }
    assert_eq!(driver.step(), "A1* Q1* B3* C3*");
    assert_eq!(driver.step(), "A1* B1* C1*");
}
