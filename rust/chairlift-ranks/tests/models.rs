//! The barrier in every order of its steps that threads can have (loom), with words that also fail.
//!
//! A word that forgets a wake, a bit or a stamp is a barrier with that defect: the models must find each.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use chairlift_ranks::{Barrier, Broken, Cause, Limits, Word, num_words};
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::time::Duration;

const LIMITS: Limits = Limits {
    spin: Duration::ZERO,
    timeout: None,
};

/// What a word does not do.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Defect {
    #[default]
    None,
    LosesWakes,
    LosesPoison,
    LosesStamps,
    SleepsOnAnyValue,
}

/// A word that sleeps without a bound: a wake that is lost is a deadlock.
struct ModelWord {
    value: AtomicU32,
    sleeping: Mutex<()>,
    changed: Condvar,
    defect: Defect,
}

impl ModelWord {
    fn new(defect: Defect) -> Self {
        Self {
            value: AtomicU32::new(0),
            sleeping: Mutex::new(()),
            changed: Condvar::new(),
            defect,
        }
    }
}

impl Word for ModelWord {
    fn load(&self) -> u32 {
        // A load of loom may give an old value, whatever its order; an addition of nothing gives the last one.
        self.value.fetch_add(0, Ordering::SeqCst)
    }

    fn store(&self, value: u32) {
        if self.defect != Defect::LosesStamps {
            self.value.swap(value, Ordering::SeqCst);
        }
    }

    fn compare_exchange(&self, current: u32, new: u32) -> Result<u32, u32> {
        self.value
            .compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn set_bits(&self, bits: u32) {
        if self.defect != Defect::LosesPoison {
            self.value.fetch_or(bits, Ordering::SeqCst);
        }
    }

    fn add(&self, number: u32) {
        self.value.fetch_add(number, Ordering::SeqCst);
    }

    fn sleep(&self, value: u32, _: Duration) {
        // A futex compares and begins to sleep in one step, which no wake can divide.
        let guard = self.sleeping.lock().unwrap();
        if self.load() == value || self.defect == Defect::SleepsOnAnyValue {
            drop(self.changed.wait(guard).unwrap());
        }
    }

    fn wake(&self) {
        if self.defect != Defect::LosesWakes {
            drop(self.sleeping.lock().unwrap());
            self.changed.notify_all();
        }
    }
}

struct Group {
    words: Vec<ModelWord>,
    /// Of each rank and parity.
    areas: Vec<[AtomicU32; 2]>,
}

impl Group {
    fn new(num_ranks: usize, defect: Defect) -> Arc<Self> {
        let words = (0..num_words(num_ranks)).map(|_| ModelWord::new(defect));
        Arc::new(Self {
            words: words.collect(),
            areas: (0..num_ranks)
                .map(|_| [AtomicU32::new(0), AtomicU32::new(0)])
                .collect(),
        })
    }

    fn barrier(&self, rank: usize) -> Barrier<'_, ModelWord> {
        Barrier::new(&self.words, 1, rank, self.areas.len()).unwrap()
    }

    /// Writes, meets and reads, `num_rounds` times, as a gather does.
    fn gather(&self, rank: usize, num_rounds: u32) {
        let barrier = self.barrier(rank);
        for round in 1..=num_rounds {
            let parity = barrier.next_round().parity();
            self.areas[rank][parity].store(10 * round + rank as u32, Ordering::Relaxed);
            barrier.wait(LIMITS).unwrap();
            for (other, area) in self.areas.iter().enumerate() {
                let found = area[parity].load(Ordering::Relaxed);
                assert_eq!(found, 10 * round + other as u32);
            }
        }
    }
}

/// Runs `rank` of each rank on a thread of its own, in every order with at most three preemptions.
fn explore(num_ranks: usize, defect: Defect, rank: fn(&Group, usize)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let group = Group::new(num_ranks, defect);
        let others: Vec<_> = (1..num_ranks)
            .map(|number| {
                let group = Arc::clone(&group);
                thread::spawn(move || rank(&group, number))
            })
            .collect();
        rank(&group, 0);
        for other in others {
            other.join().unwrap();
        }
    });
}

fn poison_or_wait(group: &Group, rank: usize) {
    let barrier = group.barrier(rank);
    if rank == 1 {
        barrier.poison(Cause::Failed, 1);
    } else {
        let broken = Broken {
            cause: Cause::Failed,
            rank: 1,
        };
        assert_eq!(barrier.wait(LIMITS), Err(broken));
    }
}

#[test]
fn ranks_read_what_all_wrote_before_the_round() {
    explore(2, Defect::None, |group, rank| group.gather(rank, 3));
}

#[test]
fn three_ranks_meet() {
    explore(3, Defect::None, |group, rank| group.gather(rank, 1));
}

#[test]
fn a_poison_reaches_a_rank_that_waits_or_comes_to_wait() {
    explore(2, Defect::None, poison_or_wait);
    explore(3, Defect::None, poison_or_wait);
}

#[test]
fn a_round_that_ended_before_the_poison_has_ended_for_all() {
    explore(2, Defect::None, |group, rank| {
        let barrier = group.barrier(rank);
        assert!(barrier.wait(LIMITS).is_ok());
        if rank == 0 {
            barrier.poison(Cause::Closed, 0);
        }
    });
}

/// A model that fails ends its process: each runs in one of its own.
#[test]
fn the_models_find_each_defect() {
    let program = std::env::current_exe().unwrap();
    for (name, _) in DEFECTS {
        let mut command = std::process::Command::new(&program);
        command.args(["--exact", "a_model_of_one_defect", "--ignored"]);
        let output = command.env(DEFECT, name).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert!(
            !output.status.success() && said.contains("deadlock"),
            "{name}: {said}"
        );
    }
}

const DEFECT: &str = "CHAIRLIFT_TEST_DEFECT";

const DEFECTS: [(&str, Defect); 4] = [
    ("loses wakes", Defect::LosesWakes),
    ("loses poison", Defect::LosesPoison),
    ("loses stamps", Defect::LosesStamps),
    ("sleeps on any value", Defect::SleepsOnAnyValue),
];

#[test]
#[ignore = "run by the_models_find_each_defect"]
fn a_model_of_one_defect() {
    let name = std::env::var(DEFECT).unwrap();
    let (_, defect) = DEFECTS.iter().find(|(found, _)| *found == name).unwrap();
    if *defect == Defect::LosesPoison {
        explore(2, *defect, poison_or_wait);
    } else {
        explore(2, *defect, |group, rank| group.gather(rank, 1));
    }
}
