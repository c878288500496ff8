//! Pieces of work that threads take in turn: those of a caller ([`each`]), or workers that begin before it waits.
//!
//! The caller of workers takes pieces as well: it never waits for one that is not begun, and without a worker it computes them all.

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

/// The numbers below a length, each of which is taken once.
struct Pieces {
    len: usize,
    next: AtomicUsize,
}

impl Pieces {
    fn new(len: usize) -> Self {
        Self {
            len,
            next: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> Option<usize> {
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        (piece < self.len).then_some(piece)
    }
}

/// Calls `run` with each number below `len`, on the threads of `spread`.
pub(crate) fn each(len: usize, spread: Spread<'_>, run: impl Fn(usize) + Sync) {
    let pieces = Pieces::new(len);
    spread(len, &|| {
        while let Some(piece) = pieces.take() {
            run(piece);
        }
    });
}

struct Batch {
    work: Arc<dyn Work>,
    pieces: Pieces,
    num_done: Mutex<usize>,
    done: Condvar,
}

impl Batch {
    /// Does pieces until all are begun.
    fn help(&self) {
        while let Some(piece) = self.pieces.take() {
            self.work.run(piece);
            *lock(&self.num_done) += 1;
            self.done.notify_all();
        }
    }

    fn wait(&self) {
        let mut num_done = lock(&self.num_done);
        while *num_done < self.pieces.len {
            num_done = self
                .done
                .wait(num_done)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Work that was begun.
pub(crate) struct Begun(Arc<Batch>);

impl Begun {
    /// Does what nothing has begun, and waits for the rest.
    pub(crate) fn finish(&self) {
        self.0.help();
        self.0.wait();
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
        for _ in 0..num_threads.min(batch.pieces.len) {
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
        let batch = Arc::new(Batch {
            pieces: Pieces::new(work.num_pieces()),
            work,
            num_done: Mutex::new(0),
            done: Condvar::new(),
        });
        self.shared.push(&batch, self.num_threads);
        Begun(batch)
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
