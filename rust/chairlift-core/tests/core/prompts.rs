//! Prompts that are sent back: each position once, whatever was computed again.

use crate::driver::{Driver, config};
use chairlift_core::{NewRequest, PromptOptions, policy::Policy};

fn with_prompt(prompt: Vec<i32>, echo: bool, scores: bool, max_tokens: usize) -> NewRequest {
    NewRequest {
        prompt_output: PromptOptions { echo, scores },
        ..NewRequest::new(prompt, max_tokens)
    }
}

#[test]
fn a_prompt_in_chunks_is_scored_but_for_its_first_token() {
    let mut driver = Driver::new(config(Policy::Continuous));
    let prompt: Vec<i32> = (1..20).collect();
    let request = driver.add_request('A', with_prompt(prompt.clone(), false, true, 3));
    driver.trace();
    let outcome = driver.outcome(request);
    assert_eq!(outcome.prompt, prompt);
    assert_eq!(outcome.num_scores, prompt.len() - 1);
    assert_eq!(outcome.prompt_text, "");
    assert_eq!(outcome.tokens.len(), 3);
    driver.assert_empty();
}

#[test]
fn a_prompt_of_one_token_has_no_log_probability() {
    let mut driver = Driver::new(config(Policy::Continuous));
    let request = driver.add_request('A', with_prompt(vec![5], true, true, 1));
    driver.trace();
    assert_eq!(driver.outcome(request).prompt, [5]);
    assert_eq!(driver.outcome(request).num_scores, 0);
}

#[test]
fn an_echo_reads_the_prefix_cache_and_a_scored_prompt_does_not() {
    let mut cached = config(Policy::Continuous);
    cached.prefix_cache = true;
    let mut driver = Driver::new(cached);
    let prompt: Vec<i32> = (1..13).collect();
    driver.add_request('A', with_prompt(prompt.clone(), false, false, 1));
    driver.trace();
    let echoed = driver.add_request('B', with_prompt(prompt.clone(), true, false, 1));
    let few = driver.trace();
    let scored = driver.add_request('C', with_prompt(prompt.clone(), true, true, 1));
    let many = driver.trace();
    assert!(few.len() < many.len(), "{few:?} {many:?}");
    for (request, num_scores) in [(echoed, 0), (scored, prompt.len() - 1)] {
        assert_eq!(driver.outcome(request).prompt, prompt);
        assert_eq!(driver.outcome(request).num_scores, num_scores);
    }
}

#[test]
fn a_long_prompt_comes_in_pieces_of_bounded_size() {
    let mut large = config(Policy::Continuous);
    large.max_num_batched_tokens = 8192;
    large.max_model_len = 4096;
    large.num_blocks = 4096;
    let mut driver = Driver::new(large);
    let request = driver.add_request('A', with_prompt(vec![1; 3000], true, true, 1));
    driver.step();
    // The driver has checked that they follow one another.
    assert_eq!(driver.outcome(request).num_pieces, 3);
}
