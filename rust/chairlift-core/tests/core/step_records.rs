//! The record of a step says what each row did.

use crate::{
    drafts::{answer, continuous, decoding},
    driver::{Driver, config},
};
use chairlift_core::{
    policy::Policy,
    scheduler::{RowRecord, RowWork},
};

fn row(work: RowWork, num_tokens: u32) -> RowRecord {
    RowRecord {
        row: 0,
        work,
        num_tokens,
        num_drafts: 0,
        num_accepted: 0,
        is_finished: false,
    }
}

#[test]
fn a_record_tells_prompts_decodes_and_drafts_apart() {
    let (mut driver, a) = decoding(continuous(), 5);
    let tokens = answer('A', 4, 5);
    let record = |driver: &crate::driver::Driver| driver.scheduler.last_step().rows.clone();
    assert_eq!(record(&driver), [row(RowWork::Prefill, 4)]);
    assert_eq!(driver.step(), "A1*");
    assert_eq!(record(&driver), [row(RowWork::Decode, 1)]);
    assert!(driver.scheduler.draft(a, 0, &[tokens[2], 999]));
    assert_eq!(driver.step(), "A3*");
    let verified = RowRecord {
        num_drafts: 2,
        num_accepted: 1,
        ..row(RowWork::Verify, 3)
    };
    assert_eq!(record(&driver), [verified]);
    assert_eq!(driver.step(), "A1*");
    let last = RowRecord {
        is_finished: true,
        ..row(RowWork::Decode, 1)
    };
    assert_eq!(record(&driver), [last]);
    assert!(driver.scheduler.last_step().preempted.is_empty());
}

#[test]
fn the_record_of_a_failed_step_tells_which_rows_it_ended() {
    let mut driver = Driver::new(config(Policy::Continuous));
    let failing = driver.add('A', 3, 4);
    driver.add('B', 3, 4);
    driver.step();
    driver.failing_step(&[failing]);
    let rows = &driver.scheduler.last_step().rows;
    let found: Vec<_> = rows.iter().map(|row| (row.work, row.is_finished)).collect();
    assert_eq!(found, [(RowWork::Decode, true), (RowWork::Decode, false)]);
}
