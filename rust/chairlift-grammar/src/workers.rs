//! Pieces of work that threads take in turn: those of the caller, and workers that begin before it waits.
//!
//! The threads of the caller never wait for a piece that is not begun, and without a worker they compute them all.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Pieces of work that may run at once.
pub(crate) trait Work: Send + Sync {
    fn num_pieces(&self) -> usize;

    /// Does the work of a piece, each once. Must not panic.
    fn run(&self, piece: usize);
}

/// Runs a function on up to so many threads, at least once, and returns when all calls have returned.
pub type Spread<'a> = &'a dyn Fn(usize, &(dyn Fn() + Sync));

/// Runs a piece of each number below `len` on the threads of `spread`, which take them in turn.
pub(crate) fn each(len: usize, spread: Spread<'_>, piece: &(dyn Fn(usize) + Sync)) {
    let next = AtomicUsize::new(0);
    spread(len, &|| {
        loop {
            let taken = next.fetch_add(1, Ordering::Relaxed);
            if taken >= len {
                return;
            }
            piece(taken);
        }
    });
}

struct Batch {
    work: Arc<dyn Work>,
    next: AtomicUsize,
    num_done: Mutex<usize>,
    done: Condvar,
}

impl Batch {
    /// Does pieces until all are begun.
    fn help(&self) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.work.num_pieces() {
                return;
            }
            self.work.run(piece);
            *lock(&self.num_done) += 1;
            self.done.notify_all();
        }
    }

    fn wait(&self) {
        let mut num_done = lock(&self.num_done);
        while *num_done < self.work.num_pieces() {
            num_done = self
                .done
                .wait(num_done)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Work that may have begun.
pub(crate) struct Begun(Arc<Batch>);

impl Begun {
    /// Begins nothing: the threads that wait do it all.
    pub(crate) fn later(work: Arc<dyn Work>) -> Self {
        Self(Arc::new(Batch {
            work,
            next: AtomicUsize::new(0),
            num_done: Mutex::new(0),
            done: Condvar::new(),
        }))
    }

    /// Does what nothing has begun, on the threads of `spread`, and waits for the rest.
    pub(crate) fn finish(&self, spread: Spread<'_>) {
        let Self(batch) = self;
        spread(batch.work.num_pieces(), &|| batch.help());
        batch.wait();
    }
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Arc<Batch>>,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    has_work: Condvar,
}

impl Shared {
    /// Wakes up to `num_threads` workers for the pieces of a batch.
    fn push(&self, batch: &Arc<Batch>, num_threads: usize) {
        let mut queue = lock(&self.queue);
        for _ in 0..num_threads.min(batch.work.num_pieces()) {
            queue.batches.push_back(Arc::clone(batch));
            self.has_work.notify_one();
        }
    }
}

/// A few threads, which end with it.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    num_threads: usize,
}

impl Workers {
    /// Starts as many threads as the system gives, up to `max_threads`.
    pub(crate) fn new(max_threads: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let start = |_: &usize| {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name("chairlift-masks".into());
            builder.spawn(move || work(&shared)).is_ok()
        };
        let num_threads = (0..max_threads).take_while(start).count();
        Self {
            shared,
            num_threads,
        }
    }

    /// Begins the work on its threads.
    pub(crate) fn begin(&self, work: Arc<dyn Work>) -> Begun {
        let begun = Begun::later(work);
        self.shared.push(&begun.0, self.num_threads);
        begun
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        lock(&self.shared.queue).is_closed = true;
        self.shared.has_work.notify_all();
    }
}

fn work(shared: &Shared) {
    let mut queue = lock(&shared.queue);
    while !queue.is_closed {
        if let Some(batch) = queue.batches.pop_front() {
            drop(queue);
            batch.help();
            queue = lock(&shared.queue);
        } else {
            queue = shared
                .has_work
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Locks what only this crate locks. Nothing under these locks panics, but a parser, and its matcher fails from then on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
