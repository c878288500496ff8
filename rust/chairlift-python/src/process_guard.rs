//! `ProcessGuard`: a thread that ends the process and never needs the interpreter's lock.
//!
//! Python's own timers and watchdogs are Python threads: native code that holds the lock silences them, signal handlers
//! included. This thread reads clocks, flags and what the kernel counts. Of a time in which it did not run itself (SIGSTOP,
//! a paused virtual machine) it knows nothing, so that such a time counts against no deadline. On a machine with more work
//! than processors an interpreter is silent because its threads wait for one: that is no silence either, within a bound.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::run_queue::RunQueue;
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag, low_level,
};

const PERIOD: Duration = Duration::from_millis(100);

/// A longer sleep than this was not the thread's own.
const GAP: Duration = Duration::from_secs(1);

/// After a signal the interpreter may be silent for no longer than this, whatever was allowed before.
const SILENCE_AFTER_SIGNAL: Duration = Duration::from_secs(5);

/// From this part of the longest silence on, the waits of threads are looked at.
const SUSPICIOUS: u32 = 5;

/// The most that one silence may grow by the waits of threads: one of them may wait for ever.
const MAX_WAITED: Duration = Duration::from_secs(60);

/// What the process is held to, all of it on the clock of `Instant`.
struct State {
    last_beat: Instant,
    /// How long threads of the process have waited for a processor since then.
    waited: Duration,
    max_silence: Option<Duration>,
    exit_at: Option<Instant>,
    grace: Option<Grace>,
    closed: bool,
}

/// Flags that SIGTERM and SIGINT set, and the time from the first signal to the exit.
struct Grace {
    signals: [Arc<AtomicBool>; 2],
    within: Duration,
}

impl State {
    /// Moves every deadline by a time in which the process stood still.
    fn forgive(&mut self, gap: Duration) {
        self.last_beat += gap;
        self.exit_at = self.exit_at.map(|at| at + gap);
    }

    fn beat(&mut self, now: Instant) {
        self.last_beat = now;
        self.waited = Duration::ZERO;
    }

    /// Whether the silence so far is long enough to ask for its cause.
    fn is_suspicious(&self, now: Instant) -> bool {
        let silence = now.saturating_duration_since(self.last_beat);
        self.max_silence
            .is_some_and(|limit| silence > limit / SUSPICIOUS)
    }

    fn note_wait(&mut self, waited: Duration) {
        self.waited = (self.waited + waited).min(MAX_WAITED);
    }

    fn note_signal(&mut self, now: Instant) {
        let has_come = |grace: &mut Grace| {
            grace
                .signals
                .iter()
                .any(|signal| signal.load(Ordering::Relaxed))
        };
        let Some(grace) = self.grace.take_if(has_come) else {
            return;
        };
        // Python may have seen the signal first, and a second one too.
        let at = now + grace.within;
        self.exit_at = Some(self.exit_at.map_or(at, |earlier| earlier.min(at)));
        let limit = self.max_silence.unwrap_or(SILENCE_AFTER_SIGNAL);
        if limit >= SILENCE_AFTER_SIGNAL {
            self.max_silence = Some(SILENCE_AFTER_SIGNAL);
            // A longer silence was allowed so far: the shorter one begins here.
            self.beat(now);
        }
    }

    /// Why the process has to end now.
    fn verdict(&self, now: Instant) -> Option<String> {
        let silence = now
            .saturating_duration_since(self.last_beat)
            .saturating_sub(self.waited);
        if self.max_silence.is_some_and(|limit| silence > limit) {
            let seconds = silence.as_secs_f64();
            return Some(format!("the interpreter has not run for {seconds:.1} s"));
        }
        self.exit_at
            .is_some_and(|at| now >= at)
            .then(|| "the shutdown took too long".to_owned())
    }
}

/// Ends the process when Python no longer runs, or when its shutdown takes too long.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct ProcessGuard {
    state: Arc<Mutex<State>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The longest time that the guard holds the process to, 100 years: the clock has room for it.
const MAX_DURATION: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn duration(seconds: f64) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        let message = format!("expected a number of seconds, got {seconds}");
        return Err(PyValueError::new_err(message));
    }
    Ok(Duration::try_from_secs_f64(seconds).map_or(MAX_DURATION, |time| time.min(MAX_DURATION)))
}

/// Writes to standard error on a thread of its own: a closed pipe is an error, and a full one may block for ever.
fn print_within(limit: Duration, text: String) {
    let write = move || io::stderr().write_all(text.as_bytes());
    // A machine that can start no thread any more must not keep the process alive either.
    let Ok(writer) = thread::Builder::new().spawn(write) else {
        return;
    };
    let until = Instant::now() + limit;
    while !writer.is_finished() && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
}

fn watch(state: &Mutex<State>, exit_code: i32) {
    let mut last = Instant::now();
    let mut queue: Option<RunQueue> = None;
    loop {
        thread::sleep(PERIOD);
        let now = Instant::now();
        let is_suspicious = lock(state).is_suspicious(now);
        let waited = queue.as_mut().filter(|_| is_suspicious);
        let waited = waited.map_or(Duration::ZERO, |queue| queue.waited(now));
        if !is_suspicious {
            queue = None;
        } else if queue.is_none() {
            queue = Some(RunQueue::new(now));
        }
        let mut state = lock(state);
        if state.closed {
            return;
        }
        let slept = now.saturating_duration_since(last);
        if slept > GAP {
            state.forgive(slept.saturating_sub(PERIOD));
        } else {
            state.note_wait(waited);
        }
        last = now;
        state.note_signal(now);
        if let Some(reason) = state.verdict(now) {
            print_within(
                GAP,
                format!("chairlift: {reason}; the process ends with {exit_code}\n"),
            );
            low_level::exit(exit_code);
        }
    }
}

#[pymethods]
impl ProcessGuard {
    #[new]
    fn new(exit_code: i32) -> PyResult<Self> {
        let state = Arc::new(Mutex::new(State {
            last_beat: Instant::now(),
            waited: Duration::ZERO,
            max_silence: None,
            exit_at: None,
            grace: None,
            closed: false,
        }));
        let watched = Arc::clone(&state);
        thread::Builder::new()
            .name("chairlift-guard".to_owned())
            .spawn(move || watch(&watched, exit_code))
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self { state })
    }

    fn beat(&self) {
        lock(&self.state).beat(Instant::now());
    }

    fn limit_silence(&self, seconds: f64) -> PyResult<()> {
        let limit = duration(seconds)?;
        let mut state = lock(&self.state);
        state.beat(Instant::now());
        state.max_silence = Some(limit);
        Ok(())
    }

    fn exit_within(&self, seconds: f64) -> PyResult<()> {
        lock(&self.state).exit_at = Some(Instant::now() + duration(seconds)?);
        Ok(())
    }

    fn watch_signals(&self, exit_within_s: f64) -> PyResult<()> {
        let within = duration(exit_within_s)?;
        let [terminate, interrupt] = [SIGTERM, SIGINT].map(|signal| {
            let flag = Arc::new(AtomicBool::new(false));
            // The handler that was there before still runs.
            flag::register(signal, Arc::clone(&flag)).map(|_| flag)
        });
        let signals = [terminate?, interrupt?];
        lock(&self.state).grace = Some(Grace { signals, within });
        Ok(())
    }

    fn close(&self) {
        lock(&self.state).closed = true;
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __exit__(&self, _kind: Py<PyAny>, _error: Py<PyAny>, _traceback: Py<PyAny>) {
        self.close();
    }
}
