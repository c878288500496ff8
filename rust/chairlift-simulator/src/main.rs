//! `chairlift-simulator --seeds 0..1000 | --steps N | --seed S [--trace]`
#![expect(clippy::print_stdout, reason = "a command")]

use std::{
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use chairlift_simulator::{Failed, Simulator, Tally};

const USAGE: &str = "usage: chairlift-simulator [--seeds A..B | --steps N [--from SEED] | --seed S [--trace]] [--threads N]

  --seeds A..B   run these seeds
  --steps N      run seeds from 0 on (or --from SEED) until so many steps are done; the default, with 10,000,000
  --seed S       run one seed; --trace prints each event and what it did
  --brief        no progress; a failure is one line: seed, steps of all seeds, seconds, events when shrunk, what is wrong
  --threads N    default: all cores";

struct Options {
    first: u64,
    last: u64,
    steps: u64,
    threads: usize,
    trace: bool,
    brief: bool,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            println!("{message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if options.trace {
        println!("{}", Simulator::default().trace(options.first));
    }
    let hunt = Hunt::new(options);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..hunt.options.threads)
            .map(|_| scope.spawn(|| hunt.work()))
            .collect();
        hunt.report(|| workers.iter().all(thread::ScopedJoinHandle::is_finished));
    });
    hunt.conclude()
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options {
        first: 0,
        last: u64::MAX,
        steps: 10_000_000,
        threads,
        trace: false,
        brief: false,
    };
    let number = |value: Option<String>| {
        let value = value.ok_or("a value is missing")?;
        value
            .replace('_', "")
            .parse::<u64>()
            .map_err(|_| format!("expected a number, got {value}"))
    };
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seeds" => {
                let range = args.next().unwrap_or_default();
                let (first, last) = range.split_once("..").ok_or("expected --seeds A..B")?;
                options.first = number(Some(first.into()))?;
                options.last = number(Some(last.into()))?;
                options.steps = u64::MAX;
            }
            "--seed" => {
                options.first = number(args.next())?;
                options.last = options.first + 1;
            }
            "--from" => options.first = number(args.next())?,
            "--steps" => options.steps = number(args.next())?,
            "--threads" => options.threads = number(args.next())?.max(1) as usize,
            "--trace" => options.trace = true,
            "--brief" => options.brief = true,
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

/// Threads that take one seed after the other until the work is done or a seed fails.
struct Hunt {
    options: Options,
    started: Instant,
    next_seed: AtomicU64,
    steps: AtomicU64,
    tally: Mutex<Tally>,
    failed: Mutex<Option<Box<Failed>>>,
}

impl Hunt {
    fn new(options: Options) -> Self {
        Self {
            started: Instant::now(),
            next_seed: AtomicU64::new(options.first),
            steps: AtomicU64::new(0),
            tally: Mutex::default(),
            failed: Mutex::default(),
            options,
        }
    }

    fn work(&self) {
        let simulator = Simulator::default();
        let mut tally = Tally::default();
        while self.steps.load(Relaxed) < self.options.steps && lock(&self.failed).is_none() {
            let seed = self.next_seed.fetch_add(1, Relaxed);
            if seed >= self.options.last {
                break;
            }
            match simulator.run(seed) {
                Ok(passed) => {
                    self.steps.fetch_add(passed.tally.steps(), Relaxed);
                    tally.merge(&passed.tally);
                }
                Err(failed) => {
                    lock(&self.failed).get_or_insert(failed);
                }
            }
        }
        lock(&self.tally).merge(&tally);
    }

    fn report(&self, is_done: impl Fn() -> bool) {
        let mut next = Duration::from_secs(2);
        while !is_done() {
            thread::sleep(Duration::from_millis(20));
            if self.started.elapsed() >= next {
                next += Duration::from_secs(2);
                self.progress();
            }
        }
        self.progress();
    }

    fn progress(&self) {
        if self.options.brief {
            return;
        }
        let (steps, seconds) = (
            self.steps.load(Relaxed),
            self.started.elapsed().as_secs_f64(),
        );
        let seeds = self.next_seed.load(Relaxed).min(self.options.last) - self.options.first;
        println!(
            "{seeds:>9} seeds {steps:>12} steps {seconds:>7.1} s {:>9.0} steps/s",
            steps as f64 / seconds
        );
    }

    fn conclude(&self) -> ExitCode {
        let Some(failed) = lock(&self.failed).take() else {
            println!("{}", lock(&self.tally));
            return ExitCode::SUCCESS;
        };
        let simulator = Simulator::default();
        if self.options.brief {
            let seconds = self.started.elapsed().as_secs_f64();
            let steps = self.steps.load(Relaxed) + failed.steps;
            let (seed, message) = (
                failed.scenario.seed.unwrap_or_default(),
                failed.message.clone(),
            );
            let num_events = simulator.shrink(*failed).num_events();
            println!("failed: {seed} | {steps} | {seconds:.1} | {num_events}: {message}");
            return ExitCode::FAILURE;
        }
        println!("{failed}");
        println!("{}", simulator.describe(&simulator.shrink(*failed)));
        ExitCode::FAILURE
    }
}

/// The value of a lock; a thread that panicked has left it whole.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
