//! Threads that compute the masks of a step, while the engine's thread computes its forward pass or after it.
//!
//! A batch is a list of pieces of work. Idle workers take pieces, and so does the thread that waits for the batch: it never waits
//! for a piece that is not begun, and without a worker it computes them all.

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

/// Work that was begun.
pub(crate) struct Begun {
    batch: Arc<Batch>,
    /// Workers that take pieces only once the batch is waited for.
    late: Option<Arc<Shared>>,
    num_threads: usize,
}

impl Begun {
    /// Does what nothing has begun, and waits for the rest.
    pub(crate) fn finish(&self) {
        if let Some(shared) = &self.late {
            shared.push(&self.batch, self.num_threads);
        }
        self.batch.help();
        self.batch.wait();
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
    overlaps: bool,
}

impl Workers {
    /// Starts as many threads as the system gives, up to `max_threads`.
    ///
    /// With `overlaps` they take pieces as soon as a batch begins, else when it is waited for.
    pub(crate) fn new(max_threads: usize, overlaps: bool) -> Self {
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
            overlaps,
        }
    }

    pub(crate) fn begin(&self, work: Arc<dyn Work>) -> Begun {
        let batch = Arc::new(Batch {
            work,
            next: AtomicUsize::new(0),
            num_done: Mutex::new(0),
            done: Condvar::new(),
        });
        if self.overlaps {
            self.shared.push(&batch, self.num_threads);
        }
        Begun {
            batch,
            late: (!self.overlaps).then(|| Arc::clone(&self.shared)),
            num_threads: self.num_threads,
        }
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
