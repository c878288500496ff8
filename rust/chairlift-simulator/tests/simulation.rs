//! A million steps under drawn work and faults, the same ones every time.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use chairlift_simulator::{Simulator, Tally};

/// Runs seeds on all cores and adds up what they met; the first failure is shrunk and shown.
fn hunt(seeds: std::ops::Range<u64>, twice: bool) -> Tally {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let simulator = Simulator::default();
        let mut tally = Tally::default();
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end {
                return tally;
            }
            let result = if twice {
                simulator.run_twice(seed)
            } else {
                simulator.run(seed)
            };
            match result {
                Ok(passed) => tally.merge(&passed.tally),
                Err(failed) => {
                    next.store(seeds.end, Relaxed);
                    let headline = failed.to_string();
                    panic!(
                        "{headline}\n{}",
                        simulator.describe(&simulator.shrink(*failed))
                    );
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut tally = Tally::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            tally.merge(&worker.join().expect("no seed fails"));
        }
    });
    tally
}

#[test]
fn a_million_steps_under_faults_break_nothing_and_meet_everything() {
    let tally = hunt(0..1040, false);
    assert!(tally.steps() >= 1_000_000, "{tally}");
    assert!(tally.unseen().is_empty(), "{tally}");
}

#[test]
fn the_same_events_make_the_same_run() {
    hunt(0..64, true);
}

/// - 1318: a preempted sequence that needed all blocks waited for more than there are.
/// - 3028: the world took a sibling that had parted, and whose parent lost its row later, for one that waits for it.
/// - 4248: a row was kept for others while all rows were those of suspended requests.
/// - 5034: the world wanted a suspended request to lose its row, too, where what had yielded was enough.
/// - 5034, with loads: a prompt left tokens to a waiting request that deferred prompts went before.
/// - 1446 and 5222, with loads: the world forgot the row of a suspended request that a later one took.
/// - 5238: a request of a tenant below its share waited behind one that lacked rows, while suspended requests had some.
#[test]
fn seeds_that_have_failed_pass() {
    for seed in [1318, 1446, 3028, 4248, 5034, 5222, 5238] {
        hunt(seed..seed + 1, false);
    }
}
