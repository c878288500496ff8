//! The kernels' own threads: persistent, parked when idle.
//!
//! A job has as many parts as threads at most; the caller computes part 0 and worker `i` part `i`.
//! Parts are fixed shares and not taken from a queue: a share of a weight matrix then stays in the
//! cache of one core from step to step, and no result can depend on timing.
//!
//! - Workers spin for a while after a job (the next layer comes soon), then park.
//! - A panic in a part reaches the caller after the other parts have ended.
//! - A part that asks for threads itself gets none: it computes all parts in turn. So does a caller that must
//!   not wait ([`inline_only`]) while another caller's job runs, and one whose workers cannot be started.
//!   Parts are the same then, and so are the bits.
//! - After `fork` the child starts workers of its own. At exit nothing is joined.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread spins before it parks: longer than what lies between two shared kernels of a
/// layer, and about what a virtual machine takes to wake a parked thread.
const SPINNING: Duration = Duration::from_micros(200);

/// Threads of a job at most, the caller included: more than any machine has.
pub const MAX_THREADS: usize = 1024;

/// Threads of a job, the caller included; 0 is "not set": as many as the process may use.
static NUM_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Sets how many threads later jobs use, the caller included: 1 to [`MAX_THREADS`].
pub fn set_num_threads(num_threads: usize) {
    NUM_THREADS.store(num_threads.clamp(1, MAX_THREADS), Ordering::Relaxed);
}

/// Threads that a job uses at most.
pub fn num_threads() -> usize {
    match NUM_THREADS.load(Ordering::Relaxed) {
        0 => {
            let available = thread::available_parallelism().map_or(1, usize::from);
            NUM_THREADS.store(available, Ordering::Relaxed);
            available
        }
        set => set,
    }
}

/// Splits `0..len` into contiguous ranges of equal length, one per thread, and runs them.
///
/// There are fewer ranges than threads where each would have less than `grain` items.
pub fn split(len: usize, grain: usize, task: impl Fn(Range<usize>) + Sync) {
    if len == 0 {
        return;
    }
    let parts = num_threads().min(len.div_ceil(grain.max(1)));
    run(parts, &|part| {
        task(part * len / parts..(part + 1) * len / parts);
    });
}

/// Items of an elementwise kernel that are worth waking a thread for.
pub fn grain(elements_per_item: usize) -> usize {
    const ELEMENTS: usize = 1 << 14;
    ELEMENTS.div_ceil(elements_per_item.max(1))
}

thread_local! {
    /// Whether this thread computes a part of a job.
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread computes alone while the pool is busy.
    static INLINE_ONLY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `task`, whose jobs are computed on this thread alone where the pool computes another caller's.
///
/// For a caller that holds a lock which others need: a job of another caller may take a long time.
pub fn inline_only<T>(task: impl FnOnce() -> T) -> T {
    struct Restore(bool);

    impl Drop for Restore {
        fn drop(&mut self) {
            INLINE_ONLY.set(self.0);
        }
    }

    let _restore = Restore(INLINE_ONLY.replace(true));
    task()
}

/// Runs `task(part)` for each part of `0..parts`, each on a thread of its own.
///
/// # Panics
/// If a part does, with its payload.
pub fn run(parts: usize, task: &(dyn Fn(usize) + Sync)) {
    if parts <= 1 || IN_JOB.get() {
        (0..parts).for_each(task);
        return;
    }
    let marked = |part| {
        IN_JOB.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| task(part)));
        IN_JOB.set(false);
        if let Err(payload) = result {
            resume_unwind(payload);
        }
    };
    let pool = Pool::of_this_process();
    match pool.workers(INLINE_ONLY.get()) {
        Some(workers) => Pool::run(workers, parts, &marked),
        None => (0..parts).for_each(task),
    }
}

type Payload = Box<dyn Any + Send>;

/// One call of `run`, on the stack of the caller, which leaves only when `pending` is 0.
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    pending: AtomicUsize,
    panic: Mutex<Option<Payload>>,
    caller: Thread,
}

impl Job<'_> {
    fn run_part(&self, part: usize) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.task)(part))) {
            *lock(&self.panic) = Some(payload);
        }
    }
}

/// A worker and the job that it is to take part in, or null.
struct Worker {
    thread: Thread,
    mailbox: Arc<AtomicPtr<Job<'static>>>,
}

struct Pool {
    process: u32,
    /// Held for the length of a job: one at a time.
    workers: Mutex<Vec<Worker>>,
}

impl Pool {
    /// The pool that belongs to this process.
    ///
    /// The memory of a forked child holds the parent's pool, perhaps locked, and none of its
    /// threads: the child leaves it alone and makes another.
    fn of_this_process() -> &'static Self {
        static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());
        let process = std::process::id();
        let current = POOL.load(Ordering::Acquire);
        // SAFETY: null, or a leaked box.
        if let Some(pool) = unsafe { current.as_ref() }
            && pool.process == process
        {
            return pool;
        }
        let fresh = Box::into_raw(Box::new(Self {
            process,
            workers: Mutex::new(Vec::new()),
        }));
        match POOL.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked above.
            Ok(_) => unsafe { &*fresh },
            Err(winner) => {
                // SAFETY: no other thread has seen `fresh`; the winner is leaked.
                unsafe {
                    drop(Box::from_raw(fresh));
                    &*winner
                }
            }
        }
    }

    /// The workers, for one job; none where that means to wait for another job and the caller must not.
    fn workers(&self, inline_only: bool) -> Option<MutexGuard<'_, Vec<Worker>>> {
        if !inline_only {
            return Some(lock(&self.workers));
        }
        match self.workers.try_lock() {
            Ok(workers) => Some(workers),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn run(mut workers: MutexGuard<'_, Vec<Worker>>, parts: usize, task: &(dyn Fn(usize) + Sync)) {
        while workers.len() < parts - 1 {
            // Where the system has no thread left, the caller computes the last parts too.
            let Ok(worker) = spawn(workers.len() + 1) else {
                break;
            };
            workers.push(worker);
        }
        let shared = parts.min(workers.len() + 1);
        let job = Job {
            task,
            pending: AtomicUsize::new(shared - 1),
            panic: Mutex::new(None),
            caller: thread::current(),
        };
        let address = (&raw const job).cast::<Job<'static>>().cast_mut();
        for worker in &workers[..shared - 1] {
            worker.mailbox.store(address, Ordering::Release);
            worker.thread.unpark();
        }
        for part in std::iter::once(0).chain(shared..parts) {
            job.run_part(part);
        }
        wait_until(|| job.pending.load(Ordering::Acquire) == 0);
        drop(workers);
        let payload = lock(&job.panic).take();
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }
}

/// Starts the worker that computes part `part` of each job, unless the system has no thread left.
fn spawn(part: usize) -> io::Result<Worker> {
    let mailbox = Arc::new(AtomicPtr::<Job<'static>>::new(ptr::null_mut()));
    let inbox = Arc::clone(&mailbox);
    let handle = thread::Builder::new()
        .name(format!("kernel-{part}"))
        .spawn(move || {
            loop {
                wait_until(|| !inbox.load(Ordering::Acquire).is_null());
                let address = inbox.swap(ptr::null_mut(), Ordering::Acquire);
                // SAFETY: the caller of `Pool::run` keeps the job until `pending` is 0, and this
                // worker has not counted itself off yet.
                let job = unsafe { &*address };
                job.run_part(part);
                let caller = job.caller.clone();
                // The job may be gone from here on.
                if job.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                    caller.unpark();
                }
            }
        })?;
    Ok(Worker {
        thread: handle.thread().clone(),
        mailbox,
    })
}

/// Returns once a condition holds, whose maker unparks this thread.
fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while start.elapsed() < SPINNING {
        // Some microseconds, in which no thread reads the clock.
        for _ in 0..64 {
            if condition() {
                return;
            }
            std::hint::spin_loop();
        }
    }
    while !condition() {
        thread::park();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing that runs under these locks leaves a value half changed. They are those of std: a lock that a forked
    // process makes anew depends on nothing that another thread of its parent may have held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn each_part_runs_once() {
        for parts in 0..9 {
            let counts: Vec<AtomicU32> = (0..parts).map(|_| AtomicU32::new(0)).collect();
            run(parts, &|part| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(
                counts
                    .iter()
                    .all(|count| count.load(Ordering::Relaxed) == 1)
            );
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for guilty in 0..3 {
            let caught = catch_unwind(|| {
                run(3, &|part| assert!(part != guilty, "part {guilty}"));
            });
            let payload = caught.expect_err("the panic is not swallowed");
            let message = payload.downcast_ref::<String>().expect("a message");
            assert_eq!(message, &format!("part {guilty}"));
        }
        each_part_runs_once();
    }

    #[test]
    fn a_job_within_a_job_does_not_deadlock() {
        let count = AtomicU32::new(0);
        run(3, &|_| {
            run(4, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.load(Ordering::Relaxed), 12);
    }

    #[test]
    fn many_callers_take_turns() {
        const ROUNDS: u32 = if cfg!(miri) { 5 } else { 200 };
        let count = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        run(3, &|_| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 4 * ROUNDS * 3);
    }

    #[test]
    fn a_caller_that_must_not_wait_computes_alone_while_the_pool_is_busy() {
        let (is_busy, may_end) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                run(2, &|_| {
                    is_busy.fetch_add(1, Ordering::SeqCst);
                    while may_end.load(Ordering::SeqCst) == 0 {
                        thread::yield_now();
                    }
                });
            });
            while is_busy.load(Ordering::SeqCst) == 0 {
                thread::yield_now();
            }
            let computed_by = Mutex::new(Vec::new());
            inline_only(|| {
                run(3, &|_| lock(&computed_by).push(thread::current().id()));
            });
            may_end.store(1, Ordering::SeqCst);
            assert_eq!(*lock(&computed_by), [thread::current().id(); 3]);
        });
    }

    #[test]
    fn split_covers_the_range_and_keeps_the_grain() {
        for len in [0, 1, 7, 64] {
            let seen: Vec<AtomicU32> = (0..len).map(|_| AtomicU32::new(0)).collect();
            split(len, 4, |range| {
                assert!(len < 4 || range.len() >= 2);
                for item in range {
                    seen[item].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}
