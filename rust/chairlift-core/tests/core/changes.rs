//! What changes while a request lives: priority, deadlines, limits and stops.

use crate::driver::{Driver, config, expected_tokens};
use chairlift_core::{
    NewRequest, PRIORITY_LEVEL, RequestId, UnknownRequest,
    events::EndReason,
    policy::Policy,
    scheduler::{Change, Schedule, Stopping},
};

const CONTINUOUS: Policy = Policy::Continuous;

fn with_priority(name: char, priority: i32) -> NewRequest {
    let mut new = NewRequest::new(vec![name as i32], 1);
    new.priority = priority;
    new
}

fn stopping(driver: &mut Driver, request: RequestId, stopping: Stopping) {
    let new = Change {
        stopping: Some(stopping),
        ..Change::default()
    };
    driver.change(request, new);
}

#[test]
fn priority_overtakes_and_waiting_makes_up_for_it() {
    let mut narrow = config(CONTINUOUS);
    narrow.max_num_seqs = 1;
    let mut driver = Driver::new(narrow);
    driver.add('A', 1, 2);
    driver.step();
    driver.add_request('B', with_priority('B', 0));
    driver.now = PRIORITY_LEVEL;
    driver.add_request('C', with_priority('C', 1));
    driver.add_request('D', with_priority('D', 2));
    driver.add_request('E', with_priority('E', -1));
    // C came exactly its advantage later than B, which has the older name.
    assert_eq!(driver.trace(), ["A1*", "D1*", "B1*", "C1*", "E1*"]);
}

#[test]
fn a_waiting_request_moves_when_its_priority_changes() {
    let mut narrow = config(CONTINUOUS);
    narrow.max_num_seqs = 1;
    let mut driver = Driver::new(narrow);
    for name in ['A', 'B', 'C'] {
        driver.add_request(name, with_priority(name, 0));
    }
    let d = driver.add_request('D', with_priority('D', -5));
    let raise = Change {
        schedule: Some(Schedule {
            priority: 1,
            ..Schedule::default()
        }),
        ..Change::default()
    };
    driver.change(d, raise);
    assert_eq!(driver.trace(), ["D1*", "A1*", "B1*", "C1*"]);
}

#[test]
fn the_first_who_came_opens_the_gate_whatever_stands_before_it() {
    let mut driver = Driver::new(config(Policy::Batched {
        size: 4,
        patience: 50,
    }));
    driver.add('A', 1, 1);
    driver.now = 40;
    driver.add_request('B', with_priority('B', 10));
    assert_eq!(driver.step(), "-");
    driver.now = 50;
    assert_eq!(driver.step(), "B1* A1*");
}

#[test]
fn deadlines_move_both_ways() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let mut new = NewRequest::new(vec![1], 50);
    new.deadline = Some(10);
    let a = driver.add_request('A', new);
    driver.step();
    let until = |time_limit| Change {
        schedule: Some(Schedule {
            time_limit,
            ..Schedule::default()
        }),
        ..Change::default()
    };
    driver.change(a, until(Some(30)));
    driver.now = 10;
    assert_eq!(driver.step(), "A1*");
    driver.change(a, until(Some(20)));
    driver.now = 20;
    assert_eq!(driver.step(), "-");
    assert_eq!(driver.outcome(a).end, Some(EndReason::TimeLimit));
}

#[test]
fn fewer_tokens_than_there_are_end_an_answer_at_once() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let a = driver.add('A', 2, 9);
    (0..3).for_each(|_| drop(driver.step()));
    let limit = |max_tokens| Stopping {
        max_tokens,
        ..Stopping::default()
    };
    stopping(&mut driver, a, limit(4));
    assert_eq!(driver.outcome(a).end, None);
    stopping(&mut driver, a, limit(3));
    assert_eq!(driver.outcome(a).end, Some(EndReason::Length));
    assert_eq!(driver.outcome(a).tokens.len(), 3);
    driver.assert_empty();
}

#[test]
fn more_tokens_are_given_up_to_the_context() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let a = driver.add('A', 60, 2);
    driver.step();
    let more = Stopping {
        max_tokens: usize::MAX,
        ..Stopping::default()
    };
    stopping(&mut driver, a, more);
    driver.trace();
    assert_eq!(driver.outcome(a).tokens.len(), 4);
    assert_eq!(driver.outcome(a).end, Some(EndReason::Length));
}

#[test]
fn new_stops_hold_for_what_was_not_given_out() {
    let answer = expected_tokens(&[7], 6);
    let words: Vec<_> = answer.iter().map(|token| format!("{token} ")).collect();
    let run = |old: &[String], new: &[String], include_stop, detokenize| {
        let mut driver = Driver::new(config(CONTINUOUS));
        let mut request = NewRequest::new(vec![7], 6);
        request.text.detokenize = detokenize;
        request.text.stop = old.to_vec();
        let a = driver.add_request('A', request);
        (0..3).for_each(|_| drop(driver.step()));
        let new = Stopping {
            max_tokens: 6,
            stop: new.to_vec(),
            include_stop,
            ..Stopping::default()
        };
        stopping(&mut driver, a, new);
        driver.trace();
        let outcome = driver.outcome(a).clone();
        (outcome.text, outcome.tokens.len(), outcome.end)
    };
    let stop = |text: &str| Some(EndReason::StopString(text.to_owned()));
    let given_out = &words[1..2];
    let all = words.concat();
    assert_eq!(
        run(&[], given_out, false, true),
        (all.clone(), 6, Some(EndReason::Length)),
        "what has been sent cannot be cut"
    );
    let next = &words[4..5];
    let before = words[..4].concat();
    assert_eq!(run(&[], next, false, true), (before, 5, stop(&words[4])));
    let with_it = words[..5].concat();
    assert_eq!(run(&[], next, true, true), (with_it, 5, stop(&words[4])));
    assert_eq!(
        run(&[], next, false, false),
        (String::new(), 5, stop(&words[4])),
        "also where no text is wanted"
    );
    // Held back for the old one, and then the beginning of the new one.
    let held = [words[1..3].concat() + "never"];
    let new = [words[2..4].concat()];
    let before = words[..2].concat();
    assert_eq!(run(&held, &new, false, true), (before, 4, stop(&new[0])));
    assert_eq!(
        run(&held, &[], false, true),
        (all, 6, Some(EndReason::Length)),
        "what was held back comes when nothing waits for it"
    );
}

#[test]
fn only_live_requests_can_be_changed() {
    let mut driver = Driver::new(config(CONTINUOUS));
    let a = driver.add('A', 1, 1);
    driver.trace();
    let before = driver.load();
    for request in [a, RequestId(1 << 60)] {
        let changed = driver.scheduler.change(0, request, Change::default());
        assert_eq!(changed, Err(UnknownRequest(request.0)));
    }
    assert_eq!(driver.load(), before);
}
