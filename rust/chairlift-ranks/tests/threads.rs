//! The barrier on real threads and real futexes.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use chairlift_ranks::{Barrier, Broken, Cause, Limits, num_words};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

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

/// Where the stamp of a rank is.
fn stamp(rank: usize) -> usize {
    (3 + rank) * STRIDE
}

/// Ranks meet in every round, whether they spin or sleep, also where the number of the round wraps around.
#[test]
fn four_ranks_meet_in_thousands_of_rounds() {
    for (spin_us, first) in [(0, 0), (20, 0), (0, (1 << 31) - 500)] {
        let words = words(4);
        // As if so many rounds had ended.
        words[0].store(first, Ordering::SeqCst);
        for rank in 0..4 {
            words[stamp(rank)].store(first, Ordering::SeqCst);
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
        scope.spawn(|| assert_eq!(barrier(&words, 1, 3).wait(limits(0, 60_000)), Err(late)));
        while words[stamp(1)].load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(barrier(&words, 0, 3).wait(limits(0, 30)), Err(late));
    });
    // It comes later, and does not wait.
    let third = barrier(&words, 2, 3);
    let limits = limits(0, 60_000);
    assert_eq!(third.wait(limits), Err(late));
    assert_eq!(third.wait(limits), Err(late));
    assert_eq!(third.broken(), Some(late));
}

#[test]
fn a_rank_ends_a_round_that_the_last_to_arrive_did_not_end() {
    let words = words(2);
    let round = barrier(&words, 1, 2).next_round();
    // Rank 1 arrives between the look of rank 0 at the stamps and its sleep, and is stopped before it ends the round.
    std::thread::scope(|scope| {
        let first = scope.spawn(|| barrier(&words, 0, 2).wait(limits(0, 300)));
        while words[stamp(0)].load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        while words[STRIDE].load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        words[stamp(1)].store(1, Ordering::SeqCst);
        assert_eq!(first.join().unwrap(), Ok(round));
    });
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
