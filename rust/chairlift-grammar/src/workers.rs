//! Threads that compute the masks of a step while the engine's thread computes its forward pass.
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

/// A few threads, which end with it.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    num_threads: usize,
}

impl Workers {
    /// Starts as many threads as the system gives, up to `most`.
    pub(crate) fn new(most: usize) -> Self {
        let shared = Arc::<Shared>::default();
        let start = |_: &usize| {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name("chairlift-masks".into());
            builder.spawn(move || work(&shared)).is_ok()
        };
        let num_threads = (0..most).take_while(start).count();
        Self {
            shared,
            num_threads,
        }
    }

    pub(crate) fn begin(&self, work: Arc<dyn Work>) -> Begun {
        let num_pieces = work.num_pieces();
        let batch = Arc::new(Batch {
            work,
            next: AtomicUsize::new(0),
            num_done: Mutex::new(0),
            done: Condvar::new(),
        });
        let mut queue = lock(&self.shared.queue);
        for _ in 0..self.num_threads.min(num_pieces) {
            queue.batches.push_back(Arc::clone(&batch));
            self.shared.has_work.notify_one();
        }
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
