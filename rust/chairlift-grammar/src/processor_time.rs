//! The processor time that the constraint of a request may take.
//!
//! The parser bounds the work of its lexer and the number of its items, but not the work for one item: in a row of n items an
//! alternative costs n steps, and an ambiguous grammar costs n² of them per token. So a request has a budget of processor time,
//! which every token refills, and a thread ends the operation that exceeds it.

use std::{
    fs, process,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use llguidance::CancellationHandle;
use rustix::time::{ClockId, clock_gettime};

use crate::workers::lock;

/// At the start of a request, and at most later: twice the fuel of a lexer for one mask.
const START: Duration = Duration::from_millis(30);
/// For each token, and for each further sequence. A mask takes some 0.1 ms, and 2 ms in the largest rows that are allowed.
const PER_TOKEN: Duration = Duration::from_millis(3);

/// Between two looks at the operations that run.
const TICK: Duration = Duration::from_millis(10);
/// Looks without an operation, after which the thread sleeps until there is one.
const MAX_IDLE_TICKS: u32 = 100;
/// Where the system does not tell the processor time of a thread: passed time over processor time on a busy machine.
const MAX_CROWDING: u32 = 4;

/// The budget that the sequences of a request share.
#[derive(Debug)]
pub(crate) struct Budget {
    left_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Budget {
    pub(crate) fn new() -> Arc<Self> {
        let start = nanoseconds(START);
        Arc::new(Self {
            left_ns: start.into(),
            max_ns: start.into(),
        })
    }

    /// A further sequence of the request shares it.
    pub(crate) fn add_sequence(&self) {
        let more = nanoseconds(PER_TOKEN);
        self.max_ns.fetch_add(more, Ordering::Relaxed);
        self.left_ns.fetch_add(more, Ordering::Relaxed);
    }

    /// A sequence has a further token.
    pub(crate) fn add_token(&self) {
        let max_ns = self.max_ns.load(Ordering::Relaxed);
        let refilled = |left: u64| Some((left + nanoseconds(PER_TOKEN)).min(max_ns));
        let _ = self
            .left_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, refilled);
    }

    /// Runs an operation, which is cancelled by its handle when it exceeds what is left.
    ///
    /// Returns None if it did.
    pub(crate) fn run<T>(
        &self,
        handle: Option<CancellationHandle>,
        operation: impl FnOnce() -> T,
    ) -> Option<T> {
        let left_ns = self.left_ns.load(Ordering::Relaxed);
        let start = processor_time();
        let max = Duration::from_nanos(left_ns);
        let watched = handle.map(|handle| Watched::new(handle, start, max));
        let result = operation();
        drop(watched);
        let used_ns = nanoseconds(processor_time().saturating_sub(start));
        let spent = |left: u64| Some(left.saturating_sub(used_ns));
        let _ = self
            .left_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
        (used_ns <= left_ns).then_some(result)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What this thread has used.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

struct Operation {
    handle: CancellationHandle,
    thread: i32,
    began: Instant,
    /// Of its thread.
    processor_time: Duration,
    max: Duration,
}

impl Operation {
    fn exceeds(&self) -> bool {
        let passed = self.began.elapsed();
        if passed <= self.max {
            return false;
        }
        match processor_time_of(self.thread) {
            Some(now) => now.saturating_sub(self.processor_time) > self.max,
            None => passed > self.max * MAX_CROWDING,
        }
    }
}

/// What another thread of this process has used, where the system tells.
fn processor_time_of(thread: i32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let used_ns = text.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(used_ns))
}

/// The number of this thread in `/proc`, where there is one.
fn this_thread() -> i32 {
    #[cfg(target_os = "linux")]
    return rustix::thread::gettid().as_raw_nonzero().get();
    #[cfg(not(target_os = "linux"))]
    return 0;
}

#[derive(Default)]
struct State {
    operations: Vec<Option<Operation>>,
    num_running: usize,
    /// Ticks since one ran.
    num_idle_ticks: u32,
}

#[derive(Default)]
struct Watchdog {
    state: Mutex<State>,
    wakes: Condvar,
}

impl Watchdog {
    fn watch(&self) {
        let mut state = lock(&self.state);
        loop {
            if state.num_idle_ticks >= MAX_IDLE_TICKS {
                state = self
                    .wakes
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.wakes.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            for operation in state.operations.iter().flatten() {
                if operation.exceeds() {
                    operation.handle.cancel();
                }
            }
            state.num_idle_ticks = if state.num_running == 0 {
                state.num_idle_ticks + 1
            } else {
                0
            };
        }
    }
}

/// The watchdog of this process, whose thread a fork does not have.
static WATCHDOG: Mutex<Option<(u32, Arc<Watchdog>)>> = Mutex::new(None);

fn watchdog() -> Arc<Watchdog> {
    let mut known = lock(&WATCHDOG);
    if let Some((owner, watchdog)) = &*known
        && *owner == process::id()
    {
        return Arc::clone(watchdog);
    }
    let watchdog = Arc::<Watchdog>::default();
    let watching = Arc::clone(&watchdog);
    // Without the thread an operation that takes too long ends by itself, and the request with it.
    let _ = thread::Builder::new()
        .name("chairlift-mask-watchdog".into())
        .spawn(move || watching.watch());
    *known = Some((process::id(), Arc::clone(&watchdog)));
    watchdog
}

/// An operation that runs.
struct Watched {
    watchdog: Arc<Watchdog>,
    index: usize,
}

impl Watched {
    fn new(handle: CancellationHandle, processor_time: Duration, max: Duration) -> Self {
        let operation = Operation {
            handle,
            thread: this_thread(),
            began: Instant::now(),
            processor_time,
            max,
        };
        let watchdog = watchdog();
        let mut state = lock(&watchdog.state);
        let free = state.operations.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            state.operations.push(None);
            state.operations.len() - 1
        });
        state.operations[index] = Some(operation);
        state.num_running += 1;
        if state.num_idle_ticks >= MAX_IDLE_TICKS {
            watchdog.wakes.notify_all();
        }
        state.num_idle_ticks = 0;
        drop(state);
        Self { watchdog, index }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut state = lock(&self.watchdog.state);
        state.operations[self.index] = None;
        state.num_running -= 1;
    }
}
