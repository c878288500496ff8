//! A draft model: which answers have a use for its drafts, and what it reads of them.

use crate::{
    drafts::{answer, continuous, decoding},
    driver::Driver,
};
use chairlift_core::{RequestId, events::EndReason, scheduler::Next};

/// The answers that a draft model whose passes take no time is to draft for.
fn undrafted(driver: &mut Driver) -> Vec<RequestId> {
    let mut found = Vec::new();
    driver.scheduler.undrafted(0, &mut found);
    found.iter().map(|answer| answer.request).collect()
}

#[test]
fn a_draft_model_drafts_for_answers_that_decode_without_drafts() {
    let (mut driver, a) = decoding(continuous(), 12);
    let b = driver.add('B', 4, 12);
    assert_eq!(undrafted(&mut driver), [a], "the other has no token yet");
    assert_eq!(driver.step(), "A1* B4*");
    assert_eq!(undrafted(&mut driver), [a, b]);
    let tokens = answer('A', 4, 12);
    assert!(driver.scheduler.draft(a, 0, &tokens[2..4]));
    assert_eq!(undrafted(&mut driver), [b], "what is forced goes first");
    let forced = driver.step();
    assert_eq!(forced, "A3* B1*");
    assert_eq!(undrafted(&mut driver), [a, b]);
    driver.scheduler.set_max_step_drafts(0);
    assert_eq!(undrafted(&mut driver), []);
}

#[test]
fn a_draft_model_drafts_for_no_answer_that_waits_or_has_one_token_left() {
    let (mut driver, a) = decoding(continuous(), 3);
    driver.pause(a, true);
    assert_eq!(undrafted(&mut driver), []);
    driver.pause(a, false);
    assert_eq!(undrafted(&mut driver), [a]);
    assert_eq!(driver.step(), "A1*");
    assert_eq!(undrafted(&mut driver), []);
}

#[test]
fn a_draft_model_reads_the_tokens_of_an_answer_until_it_ends() {
    let (mut driver, a) = decoding(continuous(), 12);
    let mut found = Vec::new();
    driver.scheduler.undrafted(0, &mut found);
    let slot = found[0].slot;
    assert_eq!((found[0].num_prompt, found[0].num_tokens), (4, 5));
    let tokens = answer('A', 4, 12);
    assert_eq!(driver.scheduler.tokens_from(slot, 3), [65, tokens[0]]);
    assert_eq!(driver.scheduler.tokens_from(slot, 9), [0; 0]);
    assert!(driver.scheduler.abort(driver.now, a, EndReason::Cancelled));
    assert_eq!(driver.scheduler.tokens_from(slot, 0), [0; 0]);
    assert_eq!(driver.scheduler.tokens_from(1000, 0), [0; 0]);
}

#[test]
fn a_draft_model_leaves_an_answer_that_repeats_itself_to_the_prompt_lookup() {
    let mut config = continuous();
    config.prompt_lookup = true;
    let (mut driver, a) = decoding(config, 4000);
    assert_eq!(undrafted(&mut driver), [a]);
    for _ in 0..6 {
        let (next, _, plan) = driver.plan();
        let Next::Run(step) = next else {
            panic!("the answer goes on");
        };
        let num_samples = driver.run(&plan).len();
        driver.update(step, &vec![5; num_samples]);
    }
    assert_eq!(undrafted(&mut driver), []);
}
