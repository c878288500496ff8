//! Fair shares between tenants, as step traces.

use crate::driver::{Driver, config};
use chairlift_core::{NewRequest, policy::Policy};

/// A driver with one row, and requests of two tenants that wait for it.
fn one_row() -> Driver {
    let mut config = config(Policy::Continuous);
    config.max_num_seqs = 1;
    Driver::new(config)
}

fn of(tenant: &str, num_prompt: usize, max_tokens: usize) -> NewRequest {
    let mut new = NewRequest::new(vec![1; num_prompt], max_tokens);
    tenant.clone_into(&mut new.namespace.tenant);
    new
}

#[test]
fn a_flood_of_one_tenant_does_not_hold_up_another() {
    let mut driver = one_row();
    for name in ['A', 'B', 'C', 'D'] {
        driver.add_request(name, of("flood", 2, 1));
    }
    assert_eq!(driver.step(), "A2*");
    driver.add_request('Q', of("quiet", 2, 1));
    assert_eq!(driver.trace(), ["Q2*", "B2*", "C2*", "D2*"]);
    driver.assert_empty();
}

/// Sixteen rows, of which a flood of twenty may have what the quiet tenant leaves it.
fn flooded(quiet_was_here: bool) -> Driver {
    let mut config = config(Policy::Continuous);
    (config.max_num_seqs, config.max_num_batched_tokens) = (16, 64);
    (config.num_blocks, config.max_queued_requests) = (128, 32);
    let mut driver = Driver::new(config);
    if quiet_was_here {
        driver.add_request('q', of("quiet", 1, 1));
        driver.step();
    }
    for name in 'A'..='T' {
        driver.add_request(name, of("flood", 1, 9));
    }
    driver
}

#[test]
fn a_row_is_kept_for_a_tenant_below_its_share() {
    let mut driver = flooded(true);
    assert_eq!(driver.step().split(' ').count(), 15);
    driver.add_request('Q', of("quiet", 1, 9));
    assert!(driver.step().ends_with("Q1*"), "it joins at once");
}

#[test]
fn a_row_of_a_suspended_request_goes_to_a_tenant_below_its_share_first() {
    let mut config = config(Policy::Continuous);
    (config.max_num_seqs, config.max_num_batched_tokens) = (16, 64);
    (config.num_blocks, config.max_queued_requests) = (128, 32);
    let mut driver = Driver::new(config);
    let flood = ('A'..='P').map(|name| driver.add_request(name, of("flood", 1, 9)));
    let flood: Vec<_> = flood.collect();
    driver.step();
    for &request in &flood[..2] {
        driver.pause(request, true);
    }
    let mut quiet = of("quiet", 1, 1);
    quiet.turn_delay = 1;
    driver.add_request('Q', quiet);
    // It is before Q, and needs one row more than can be had.
    let mut several = of("flood", 1, 1);
    several.num_sequences = 3;
    driver.add_request('X', several);
    let step = driver.step();
    assert!(step.ends_with("Q1*"), "{step}");
}

#[test]
fn who_is_below_its_share_goes_before_prompts_that_others_have_begun_until_it_has_caught_up() {
    let mut config = config(Policy::Continuous);
    (config.max_num_seqs, config.max_num_batched_tokens) = (4, 8);
    let mut driver = Driver::new(config);
    driver.add_request('A', of("flood", 1, 9));
    for name in ['B', 'C'] {
        driver.add_request(name, of("flood", 20, 1));
    }
    assert_eq!(driver.step(), "A1* B7");
    driver.add_request('Q', of("quiet", 5, 9));
    assert_eq!(driver.step(), "A1* Q5* B2");
    // Q was lifted to the flood's 22, and has cost 5.
    driver.add_request('R', of("quiet", 5, 1));
    assert_eq!(driver.step(), "A1* Q1* B6");
}

#[test]
fn one_tenant_alone_has_all_the_rows() {
    assert_eq!(flooded(false).step().split(' ').count(), 16);
}

#[test]
fn who_was_served_little_goes_first_until_it_has_caught_up() {
    let mut driver = one_row();
    for name in ['A', 'B'] {
        driver.add_request(name, of("long", 4, 2));
    }
    for name in ['X', 'Y', 'Z'] {
        driver.add_request(name, of("short", 1, 1));
    }
    // A costs 4 + 2 x 2, each of the short 1 + 2.
    assert_eq!(
        driver.trace(),
        ["A4*", "A1*", "X1*", "Y1*", "Z1*", "B4*", "B1*"]
    );
}

#[test]
fn priority_orders_within_a_tenant_and_not_between() {
    let mut driver = one_row();
    driver.add_request('A', of("one", 2, 1));
    let mut urgent = of("one", 2, 1);
    urgent.priority = 10;
    driver.add_request('B', urgent);
    driver.add_request('X', of("other", 2, 1));
    assert_eq!(driver.trace(), ["B2*", "X2*", "A2*"]);
}

#[test]
fn nobody_saves_up_by_staying_away() {
    let mut driver = one_row();
    for name in ['A', 'B', 'C'] {
        driver.add_request(name, of("busy", 8, 1));
    }
    driver.step();
    for name in ['X', 'Y'] {
        driver.add_request(name, of("new", 8, 1));
    }
    assert_eq!(driver.trace(), ["X8*", "B8*", "Y8*", "C8*"]);
}

/// Four rows: two of a flood, and one of `b`, whose request is over in the fourth step. A request of `c` wants three.
fn wide_head() -> Driver {
    let mut driver = Driver::new(config(Policy::Continuous));
    for name in ['A', 'B'] {
        driver.add_request(name, of("flood", 1, 40));
    }
    driver.add_request('P', of("b", 1, 4));
    driver.step();
    let mut wide = of("c", 1, 2);
    wide.num_sequences = 3;
    driver.add_request('X', wide);
    for _ in 0..3 {
        assert!(driver.step().contains('P'));
    }
    driver
}

#[test]
fn a_tenant_without_a_row_passes_a_request_that_lacks_rows_once() {
    let mut driver = wide_head();
    // What b was served since is more than c.
    driver.add_request('Q', of("b", 1, 2));
    for _ in 0..2 {
        assert_eq!(driver.step(), "A1* B1* Q1*");
    }
    driver.add_request('R', of("b", 1, 2));
    assert_eq!(driver.step(), "A1* B1*");
}

#[test]
fn a_tenant_with_a_row_does_not_pass_a_request_that_lacks_rows() {
    let mut driver = wide_head();
    driver.add_request('Q', of("flood", 1, 2));
    assert_eq!(driver.step(), "A1* B1*");
}

#[test]
fn a_prompt_leaves_what_other_tenants_want_and_no_more_than_half() {
    let mut config = config(Policy::Continuous);
    (config.max_num_batched_tokens, config.max_model_len) = (64, 512);
    config.num_blocks = 256;
    let mut driver = Driver::new(config);
    driver.add_request('A', of("long", 400, 1));
    assert_eq!(driver.step(), "A64");
    driver.add_request('Q', of("quiet", 5, 1));
    assert_eq!(driver.step(), "A59 Q5*");
    driver.add_request('R', of("quiet", 100, 1));
    assert_eq!(driver.step(), "A32 R32");
    assert_eq!(driver.step(), "A32 R32");
    driver.add_request('B', of("long", 100, 1));
    assert_eq!(driver.step(), "A32 R32");
    assert_eq!(driver.step(), "A60 R4*");
}

#[test]
fn a_prompt_leaves_a_newcomer_only_what_the_prefix_cache_does_not_know() {
    let mut config = config(Policy::Continuous);
    (config.max_num_batched_tokens, config.max_model_len) = (64, 512);
    (config.num_blocks, config.prefix_cache) = (256, true);
    let mut driver = Driver::new(config);
    driver.add_request('X', of("quiet", 33, 1));
    assert_eq!(driver.step(), "X33*");
    driver.add_request('A', of("long", 200, 1));
    assert_eq!(driver.step(), "A64");
    driver.add_request('Q', of("quiet", 34, 1));
    assert_eq!(driver.step(), "A62 Q2*");
}

#[test]
fn a_prompt_leaves_tokens_to_a_newcomer_that_fits_only_by_its_prefix_hits() {
    let mut config = config(Policy::Continuous);
    (config.max_num_batched_tokens, config.max_model_len) = (64, 512);
    config.prefix_cache = true;
    let mut driver = Driver::new(config);
    driver.add_request('X', of("quiet", 33, 4));
    assert_eq!(driver.step(), "X33*");
    driver.add_request('A', of("long", 200, 1));
    assert_eq!(driver.step(), "X1* A63");
    // Of 64 blocks X has 9 and A has 50, written or promised. Q has 9, of which 8 are X's, too.
    driver.add_request('Q', of("quiet", 34, 1));
    assert_eq!(driver.step(), "X1* A61 Q2*");
}

#[test]
fn a_prompt_leaves_tokens_to_a_newcomer_that_takes_blocks_of_a_suspended_request() {
    let mut config = config(Policy::Continuous);
    (config.max_num_batched_tokens, config.max_model_len) = (64, 512);
    let mut driver = Driver::new(config);
    let suspended = driver.add_request('S', of("long", 60, 9));
    assert_eq!(driver.step(), "S60*");
    driver.pause(suspended, true);
    driver.add_request('A', of("long", 188, 1));
    assert_eq!(driver.step(), "A64");
    // Of 64 blocks S has 15 and A has 47, written or promised.
    driver.add_request('Q', of("quiet", 12, 1));
    assert_eq!(driver.step(), "A52 Q12*");
}

#[test]
fn a_prompt_leaves_one_that_begins_again_only_what_the_prefix_cache_does_not_know() {
    let mut config = config(Policy::Continuous);
    (config.max_num_batched_tokens, config.max_model_len) = (64, 512);
    (config.num_blocks, config.prefix_cache) = (256, true);
    let mut driver = Driver::new(config);
    driver.add_request('A', of("long", 300, 1));
    assert_eq!(driver.step(), "A64");
    driver.add_request('Q', of("quiet", 42, 1));
    assert_eq!(driver.step(), "A32 Q32");
    assert_eq!(driver.failing_step(&[]), "A54 Q10*");
    assert_eq!(driver.step(), "A54 Q10*");
}

#[test]
fn a_prompt_leaves_others_no_more_than_they_compute_before_they_save_a_state() {
    let mut config = config(Policy::Continuous);
    (config.max_num_batched_tokens, config.max_model_len) = (64, 512);
    (config.num_blocks, config.prefix_cache) = (256, true);
    (config.state_snapshots, config.max_step_drafts) = (Some(8), 0);
    let mut driver = Driver::new(config);
    driver.add_request('A', of("long", 300, 1));
    assert_eq!(driver.step(), "A64");
    driver.add_request('Q', of("quiet", 23, 1));
    // The prompts end with a chunk of their own behind the last full block.
    assert_eq!(driver.step(), "A44 Q20");
    assert_eq!(driver.step(), "A61 Q3*");
    let mut branching = of("quiet", 75, 1);
    branching.prompt[16..].fill(2);
    driver.add_request('R', branching);
    // The first 16 tokens are known, and no state behind them.
    assert_eq!(driver.step(), "A48 R16");
    assert_eq!(driver.step(), "A32 R32");
    assert_eq!(driver.step(), "A40 R24");
}

#[test]
fn a_prompt_leaves_nothing_to_a_newcomer_that_waits_for_deferred_prompts() {
    let mut config = config(Policy::Continuous);
    (config.max_num_seqs, config.max_num_batched_tokens) = (4, 64);
    (config.max_model_len, config.num_blocks) = (512, 512);
    let mut driver = Driver::new(config);
    driver.add_request('X', of("greedy", 300, 1));
    driver.trace();
    // Two rows of four are more than a third.
    driver.add_request('A', of("flood", 1, 30));
    driver.add_request('B', of("flood", 200, 1));
    assert_eq!(driver.step(), "A1* B63");
    driver.add_request('Q', of("quiet", 140, 1));
    assert_eq!(driver.step(), "A1* Q63");
    // It was served more than the flood: B goes on before it.
    driver.add_request('R', of("greedy", 40, 1));
    assert_eq!(driver.step(), "A1* Q63");
    assert_eq!(driver.step(), "A1* Q14* B49");
}
