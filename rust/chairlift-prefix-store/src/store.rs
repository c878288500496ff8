//! The store as the engine calls it: no call waits for a file, but `open` and `close`.

use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    admission::Admission,
    counters::{Counters, Stats, count},
    error::StoreError,
    index::Index,
    pieces::{append_piece, piece_names},
    reader::{Load, MAX_READY, Read, Reader, Speed},
    segment::{Format, HEADER, Name, RECORD_HEADER},
    writer::{MIN_SEGMENTS, Write, Writer},
};

/// Bytes of blocks that wait to be written, at most, and how many blocks that may be.
const MAX_PENDING_BYTES: u64 = 128 << 20;
const MIN_PENDING: u64 = 16;
const MAX_PENDING: u64 = 4096;
/// Loads that wait for the reader, at most.
const MAX_LOADS: usize = 16;

/// What a store is.
#[derive(Clone, Debug)]
pub struct Options {
    /// One server's at a time; made if it is missing.
    pub folder: PathBuf,
    /// Bytes of all segments, at most.
    pub max_bytes: u64,
    pub block_bytes: usize,
    /// Bytes of a recurrent state; 0 is a model without.
    pub state_bytes: usize,
    /// Stands for all that must be equal where a block is used again: model, numbers, layout, version.
    pub layout: [u8; 32],
    /// Secret; checksums depend on it.
    pub key: [u8; 32],
    /// A block is written when it is first computed, not when it is used a second time.
    pub admits_first: bool,
}

/// A thread, and what tells that it has ended.
#[derive(Debug)]
struct Worker(Receiver<()>);

impl Worker {
    /// Runs on a thread of its own.
    fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Self, StoreError> {
        let (ends, ended) = sync_channel(1);
        let thread = thread::Builder::new().name(name.into());
        let spawned = thread.spawn(move || {
            run();
            drop(ends);
        });
        spawned.map_err(StoreError::io(name))?;
        Ok(Self(ended))
    }

    fn has_ended(&self, timeout: Duration) -> bool {
        use std::sync::mpsc::RecvTimeoutError::Timeout;
        self.0.recv_timeout(timeout) != Err(Timeout)
    }
}

/// Blocks on disk.
#[derive(Debug)]
pub struct Store {
    format: Format,
    index: Arc<Mutex<Index>>,
    counters: Arc<Counters>,
    speed: Arc<Speed>,
    admission: Admission,
    /// Records of a state.
    num_pieces: usize,
    num_pending: Arc<AtomicUsize>,
    max_pending: usize,
    /// None once it is closed.
    queues: Option<(SyncSender<Write>, SyncSender<Read>)>,
    workers: [Worker; 2],
    /// Locked while it lives.
    _lock: File,
}

impl Store {
    /// Locks a folder, reads which blocks are in it, and starts the threads.
    ///
    /// # Errors
    /// Another server has it, it cannot be read and written, or the bytes are too few.
    pub fn open(options: Options) -> Result<Self, StoreError> {
        let Options {
            folder,
            max_bytes,
            block_bytes,
            state_bytes,
            layout,
            key,
            admits_first,
        } = options;
        let format = Format::new(layout, &key, block_bytes);
        let num_pieces = state_bytes.div_ceil(block_bytes);
        // A state does not remove its own first pieces.
        let min = MIN_SEGMENTS * (HEADER + (1 + num_pieces as u64) * format.record_bytes());
        if max_bytes < min {
            let got = max_bytes;
            return Err(StoreError::TooSmall { min, got });
        }
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(&folder).map_err(StoreError::io(&folder))?;
        let lock = lock(&folder)?;
        let index = Index::scan(&folder, format, max_bytes)?;
        let index = Arc::new(Mutex::new(index));
        let counters = Arc::new(Counters::default());
        let speed = Arc::new(Speed::new());
        let max_pending = MAX_PENDING_BYTES / format.record_bytes();
        let max_pending = max_pending.clamp(MIN_PENDING, MAX_PENDING) as usize;
        let (write_queue, writes) = sync_channel(max_pending);
        let (read_queue, reads) = sync_channel(MAX_LOADS);
        let num_pending = Arc::new(AtomicUsize::new(0));
        let writer = Writer::new(
            folder,
            format,
            max_bytes,
            Arc::clone(&index),
            Arc::clone(&counters),
        );
        let reader = Reader {
            format,
            index: Arc::clone(&index),
            counters: Arc::clone(&counters),
            speed: Arc::clone(&speed),
        };
        let pending = Arc::clone(&num_pending);
        let write = move || writer.run(&writes, &pending);
        let workers = [
            Worker::spawn("prefix-writer", write)?,
            Worker::spawn("prefix-reader", move || reader.run(&reads))?,
        ];
        Ok(Self {
            format,
            index,
            counters,
            speed,
            admission: Admission::new(admits_first),
            num_pieces,
            num_pending,
            max_pending,
            queues: Some((write_queue, read_queue)),
            workers,
            _lock: lock,
        })
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.format.block_bytes
    }

    /// Offers a block that a request has computed, or found in the cache (`is_hit`). If it is worth a write and the queue
    /// has room, `append` adds its bytes to a buffer.
    pub fn offer(&mut self, name: Name, is_hit: bool, append: impl FnOnce(&mut Vec<u8>)) {
        if self.contains(&name) || !self.admission.admits(name, is_hit) {
            return;
        }
        if self.num_pending.load(Relaxed) >= self.max_pending {
            count(&self.counters.dropped);
            return;
        }
        self.queue(name, append);
    }

    /// Offers a recurrent state, which lies in parts, as `offer` does a block. Where the queue has no room for all of its pieces
    /// none is written.
    pub fn offer_state(&mut self, name: &Name, is_hit: bool, parts: &[&[u8]]) {
        let names = piece_names(name, self.num_pieces).enumerate();
        let lacking: Vec<_> = names.filter(|(_, name)| !self.contains(name)).collect();
        if lacking.is_empty() || !self.admission.admits(*name, is_hit) {
            return;
        }
        if self.num_pending.load(Relaxed) + lacking.len() > self.max_pending {
            self.counters
                .dropped
                .fetch_add(lacking.len() as u64, Relaxed);
            return;
        }
        for (piece, name) in lacking {
            let piece_bytes = self.format.block_bytes;
            self.queue(name, |out| append_piece(parts, piece, piece_bytes, out));
        }
    }

    /// Queues a record to be written.
    fn queue(&self, name: Name, append: impl FnOnce(&mut Vec<u8>)) {
        let Some((writes, _)) = &self.queues else {
            return;
        };
        let mut record = Vec::with_capacity(RECORD_HEADER + self.format.block_bytes);
        record.resize(RECORD_HEADER, 0);
        append(&mut record);
        debug_assert_eq!(record.len(), RECORD_HEADER + self.format.block_bytes);
        self.num_pending.fetch_add(1, Relaxed);
        if writes.try_send(Write { name, record }).is_err() {
            self.num_pending.fetch_sub(1, Relaxed);
            count(&self.counters.dropped);
        }
    }

    /// Whether a block, or a piece of a state, can be loaded.
    pub fn contains(&self, name: &Name) -> bool {
        self.index.lock().contains(name)
    }

    /// Whether all pieces of a state can be loaded.
    pub fn contains_state(&self, name: &Name) -> bool {
        let index = self.index.lock();
        piece_names(name, self.num_pieces).all(|name| index.contains(&name))
    }

    /// The number of leading blocks that can be loaded.
    pub fn num_known(&self, names: &[Name]) -> usize {
        let index = self.index.lock();
        names.iter().take_while(|name| index.contains(name)).count()
    }

    /// Begins to load the leading blocks that are known, and behind all of them a state; None if there are none, if they
    /// take no less than `saves`, which computing them takes, or if too many loads wait. `saves` of None is not known yet.
    pub fn begin_load(
        &self,
        blocks: &[Name],
        state: Option<&Name>,
        saves: Option<Duration>,
    ) -> Option<Load> {
        let (_, reads) = self.queues.as_ref()?;
        let pieces = state.map(|name| piece_names(name, self.num_pieces));
        let mut names = blocks.to_vec();
        names.extend(pieces.into_iter().flatten());
        let num_blocks = self.num_known(&names);
        if num_blocks == 0 {
            return None;
        }
        names.truncate(num_blocks);
        let num_bytes = num_blocks as u64 * self.format.record_bytes();
        if saves.is_some_and(|time| time <= self.speed.predict(num_bytes)) {
            self.speed.decline();
            count(&self.counters.declined);
            return None;
        }
        let (sender, blocks) = sync_channel(MAX_READY);
        let read = Read {
            names,
            blocks: sender,
        };
        self.speed.begin(num_bytes);
        if reads.try_send(read).is_err() {
            self.speed.end(num_bytes);
            count(&self.counters.declined);
            return None;
        }
        Some(Load {
            blocks,
            ready: Vec::new(),
            state: Vec::new(),
            is_done: false,
            num_blocks,
        })
    }

    /// Counts, and what it holds.
    pub fn stats(&self) -> Stats {
        let index = self.index.lock();
        Stats {
            num_blocks: index.num_blocks(),
            num_bytes: index.num_bytes(),
            num_foreign: index.num_foreign(),
            ..self.counters.stats()
        }
    }

    /// Takes no more blocks, and waits up to `timeout` until those that wait are written; whether they are.
    pub fn close(&mut self, timeout: Duration) -> bool {
        self.queues = None;
        let deadline = Instant::now() + timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut workers = self.workers.iter();
        workers.all(|worker| worker.has_ended(left()))
    }
}

/// Locks a folder until the file is closed, by the end of the process at the latest.
fn lock(folder: &Path) -> Result<File, StoreError> {
    let path = folder.join("lock");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(&path).map_err(StoreError::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked(folder.into())),
        Err(TryLockError::Error(error)) => Err(StoreError::io(path)(error)),
    }
}
