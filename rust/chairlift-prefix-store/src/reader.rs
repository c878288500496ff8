//! The thread that reads blocks, and a load as the engine sees it.

use std::{
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    counters::{Counters, count},
    index::Index,
    pieces::fill_parts,
    segment::{Format, Name, RECORD_HEADER},
};

/// Blocks of a load that were read and not taken, at most.
pub(crate) const MAX_READY: usize = 64;
/// Bytes per second that a disk is assumed to read until one was read.
const ASSUMED_SPEED: u64 = 500_000_000;
/// What each declined load adds to the speed that is believed, as one part of so many: a slow moment is forgotten.
const RECOVERY: u64 = 32;

/// Blocks to be read, in order.
pub(crate) struct Read {
    pub(crate) names: Vec<Name>,
    pub(crate) blocks: SyncSender<Vec<u8>>,
}

/// How fast blocks are read, by what was read.
#[derive(Debug)]
pub(crate) struct Speed {
    bytes_per_s: AtomicU64,
    pending_bytes: AtomicU64,
}

impl Speed {
    pub(crate) fn new() -> Self {
        Self {
            bytes_per_s: AtomicU64::new(ASSUMED_SPEED),
            pending_bytes: AtomicU64::new(0),
        }
    }

    /// How long so many bytes take behind those that wait.
    pub(crate) fn predict(&self, num_bytes: u64) -> Duration {
        let num_bytes = num_bytes + self.pending_bytes.load(Relaxed);
        let speed = self.bytes_per_s.load(Relaxed).max(1);
        Duration::from_secs_f64(num_bytes as f64 / speed as f64)
    }

    /// Notes a load that was not begun.
    pub(crate) fn decline(&self) {
        let speed = self.bytes_per_s.load(Relaxed);
        let faster = speed + (speed / RECOVERY).max(1);
        self.bytes_per_s
            .store(faster.min(ASSUMED_SPEED.max(speed)), Relaxed);
    }

    pub(crate) fn begin(&self, num_bytes: u64) {
        self.pending_bytes.fetch_add(num_bytes, Relaxed);
    }

    pub(crate) fn end(&self, num_bytes: u64) {
        self.pending_bytes.fetch_sub(num_bytes, Relaxed);
    }

    fn observe(&self, num_bytes: u64, took: Duration) {
        let measured = num_bytes as f64 / took.as_secs_f64().max(1e-9);
        let before = self.bytes_per_s.load(Relaxed) as f64;
        self.bytes_per_s
            .store((before + (measured - before) / 4.0) as u64, Relaxed);
    }
}

/// What the thread has.
pub(crate) struct Reader {
    pub(crate) format: Format,
    pub(crate) index: Arc<Mutex<Index>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) speed: Arc<Speed>,
}

impl Reader {
    /// Reads what is asked for until nothing more can be.
    pub(crate) fn run(self, reads: &Receiver<Read>) {
        while let Ok(read) = reads.recv() {
            self.read_all(&read);
            self.speed
                .end(read.names.len() as u64 * self.format.record_bytes());
        }
    }

    /// Reads blocks up to the first that is missing or damaged, or until none are taken.
    fn read_all(&self, read: &Read) {
        let (mut num_bytes, mut time) = (0, Duration::ZERO);
        for name in &read.names {
            let began = Instant::now();
            let Some(block) = self.read(name) else {
                break;
            };
            time += began.elapsed();
            num_bytes += self.format.record_bytes();
            if read.blocks.send(block).is_err() {
                break;
            }
            count(&self.counters.loaded);
        }
        if num_bytes > 0 {
            self.speed.observe(num_bytes, time);
        }
    }

    /// A record, its header included; None if it is not there as it was written.
    fn read(&self, name: &Name) -> Option<Vec<u8>> {
        let (file, offset) = self.index.lock().find(name)?;
        let mut record = vec![0; RECORD_HEADER + self.format.block_bytes];
        let is_read = file.read_exact_at(&mut record, offset).is_ok();
        if is_read && self.format.is_sealed(name, &record) {
            return Some(record);
        }
        count(&self.counters.corrupt);
        self.index.lock().forget(name);
        None
    }
}

/// What a load has to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many blocks are ready.
    Ready(usize),
    /// Nothing yet.
    Pending,
    /// No more comes.
    Done,
}

/// Blocks on their way from disk; dropping it ends the reading.
#[derive(Debug)]
pub struct Load {
    pub(crate) blocks: Receiver<Vec<u8>>,
    /// Records that were received and not taken.
    pub(crate) ready: Vec<Vec<u8>>,
    /// The pieces of a state that were taken so far.
    pub(crate) state: Vec<Vec<u8>>,
    pub(crate) is_done: bool,
    pub(crate) num_blocks: usize,
}

impl Load {
    /// Blocks that may come, at most.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Receives blocks; waits for the first of them up to `timeout`.
    pub fn poll(&mut self, timeout: Duration) -> Progress {
        if self.ready.is_empty() && !self.is_done {
            match self.blocks.recv_timeout(timeout) {
                Ok(block) => self.ready.push(block),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.is_done = true,
            }
        }
        while self.ready.len() < MAX_READY
            && let Ok(block) = self.blocks.try_recv()
        {
            self.ready.push(block);
        }
        match self.ready.len() {
            0 if self.is_done => Progress::Done,
            0 => Progress::Pending,
            count => Progress::Ready(count),
        }
    }

    /// Keeps the first `count` of those that are ready as the next pieces of a state.
    pub fn keep_pieces(&mut self, count: usize) {
        let count = count.min(self.ready.len());
        self.state.extend(self.ready.drain(..count));
    }

    /// Fills the parts of a state with the pieces that were kept, and forgets these.
    pub fn fill_state(&mut self, parts: &mut [&mut [u8]]) {
        fill_parts(&std::mem::take(&mut self.state), parts);
    }

    /// Takes the first `count` of the blocks that are ready: the bytes of each.
    pub fn take(&mut self, count: usize) -> impl Iterator<Item = Block> + '_ {
        self.ready.drain(..count.min(self.ready.len())).map(Block)
    }
}

/// The bytes of a block as they were written.
#[derive(Debug)]
pub struct Block(Vec<u8>);

impl std::ops::Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[RECORD_HEADER..]
    }
}
