//! The barrier on real threads and real futexes.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use chairlift_ranks::{Barrier, Broken, Cause, Limits, num_words};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const STRIDE: usize = 16;

fn words(num_ranks: usize) -> Vec<AtomicU32> {
    let len = num_words(num_ranks) * STRIDE;
    (0..len).map(|_| AtomicU32::new(0)).collect()
}

fn barrier(words: &[AtomicU32], rank: usize, num_ranks: usize) -> Barrier<'_, AtomicU32> {
    Barrier::new(words, STRIDE, rank, num_ranks).unwrap()
}

fn limits(spin_us: u64, timeout_ms: u64) -> Limits {
    Limits {
        spin: Duration::from_micros(spin_us),
        timeout: Some(Duration::from_millis(timeout_ms)),
    }
}

/// Ranks meet in every round, whether they spin or sleep, also where the number of the round wraps around.
#[test]
fn four_ranks_meet_in_thousands_of_rounds() {
    for (spin_us, first) in [(0, 0), (20, 0), (0, (1 << 31) - 500)] {
        let words = words(4);
        // As if so many rounds had ended.
        words[0].store(first, Ordering::SeqCst);
        for rank in 0..4 {
            words[(3 + rank) * STRIDE].store(first, Ordering::SeqCst);
        }
        let areas: Vec<[AtomicU32; 2]> = (0..4)
            .map(|_| [AtomicU32::new(0), AtomicU32::new(0)])
            .collect();
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let (words, areas) = (&words, &areas);
                scope.spawn(move || {
                    let barrier = barrier(words, rank, 4);
                    for round in 0..1000 {
                        let parity = barrier.next_round().parity();
                        areas[rank][parity].store(round, Ordering::Relaxed);
                        barrier.wait(limits(spin_us, 60_000)).unwrap();
                        for area in areas {
                            assert_eq!(area[parity].load(Ordering::Relaxed), round);
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_rank_that_does_not_arrive_breaks_the_barrier_for_all() {
    let words = words(3);
    let late = Broken {
        cause: Cause::Late,
        rank: 2,
    };
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let words = &words;
            scope.spawn(move || {
                assert_eq!(barrier(words, rank, 3).wait(limits(0, 30)), Err(late));
            });
        }
    });
    // It comes later, and does not wait.
    let began = Instant::now();
    let third = barrier(&words, 2, 3);
    let limits = limits(0, 60_000);
    assert_eq!(third.wait(limits), Err(late));
    assert_eq!(third.wait(limits), Err(late));
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(third.broken(), Some(late));
}

#[test]
fn the_first_cause_stays() {
    let words = words(2);
    let (first, second) = (barrier(&words, 0, 2), barrier(&words, 1, 2));
    assert_eq!(first.broken(), None);
    first.poison(Cause::Died, 1);
    second.poison(Cause::Closed, 0);
    let broken = first.broken().unwrap();
    assert_eq!(broken.to_string(), "the process of rank 1 ended");
}

#[test]
fn a_barrier_needs_its_words_and_a_rank_of_its_group() {
    let words = words(2);
    assert!(Barrier::new(&words, STRIDE, 2, 2).is_none());
    assert!(Barrier::new(&words, STRIDE, 0, 3).is_none());
    assert!(Barrier::new(&words[..4 * STRIDE], STRIDE, 0, 2).is_none());
    assert!(Barrier::new(&words, 0, 0, 2).is_none());
}
