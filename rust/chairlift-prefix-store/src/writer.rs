//! The thread that appends blocks to segments.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::Receiver,
    },
};

use parking_lot::Mutex;

use crate::{
    counters::{Counters, count},
    index::{Index, segment_path},
    segment::{Format, HEADER, Name},
};

/// Bytes of a segment, at most.
const MAX_SEGMENT_BYTES: u64 = 64 << 20;
/// Segments of a full store, at least: one goes as a whole.
pub(crate) const MIN_SEGMENTS: u64 = 4;

/// A block to be written: its name, and its record without a header.
pub(crate) struct Write {
    pub(crate) name: Name,
    pub(crate) record: Vec<u8>,
}

/// The segment that grows.
struct Growing {
    number: u64,
    file: Arc<File>,
    num_records: u32,
}

/// What the thread has.
pub(crate) struct Writer {
    folder: PathBuf,
    format: Format,
    index: Arc<Mutex<Index>>,
    counters: Arc<Counters>,
    max_records: u32,
    growing: Option<Growing>,
}

impl Writer {
    /// A writer that has no segment yet.
    pub(crate) fn new(
        folder: PathBuf,
        format: Format,
        max_bytes: u64,
        index: Arc<Mutex<Index>>,
        counters: Arc<Counters>,
    ) -> Self {
        let segment_bytes = MAX_SEGMENT_BYTES.min(max_bytes / MIN_SEGMENTS);
        let max_records = segment_bytes.saturating_sub(HEADER) / format.record_bytes();
        Self {
            folder,
            format,
            index,
            counters,
            max_records: max_records.max(1) as u32,
            growing: None,
        }
    }

    /// Writes what comes until no more can.
    pub(crate) fn run(mut self, writes: &Receiver<Write>, num_pending: &AtomicUsize) {
        while let Ok(write) = writes.recv() {
            if !self.index.lock().contains(&write.name) {
                self.write(write);
            }
            num_pending.fetch_sub(1, Relaxed);
        }
    }

    fn write(&mut self, write: Write) {
        if self.append(write).is_ok() {
            count(&self.counters.written);
        } else {
            count(&self.counters.failed);
            self.close_segment();
        }
    }

    fn append(&mut self, write: Write) -> io::Result<()> {
        let Write { name, mut record } = write;
        self.format.seal(&name, &mut record);
        if self
            .growing
            .as_ref()
            .is_some_and(|growing| growing.num_records >= self.max_records)
        {
            self.growing = None;
        }
        let writing = self
            .growing
            .as_ref()
            .map_or(u64::MAX, |growing| growing.number);
        self.make_room(record.len() as u64 + HEADER, writing)?;
        let growing = match &mut self.growing {
            Some(growing) => growing,
            none => none.insert(Self::begin(&self.folder, &self.format, &self.index)?),
        };
        let offset = self.format.offset(growing.num_records);
        growing.file.write_all_at(&record, offset)?;
        growing.num_records += 1;
        let mut index = self.index.lock();
        index.add_bytes(growing.number, record.len() as u64);
        index.add(growing.number, name);
        Ok(())
    }

    fn make_room(&self, num_bytes: u64, writing: u64) -> io::Result<()> {
        let removed = self.index.lock().make_room(num_bytes, writing);
        let removed = removed.ok_or_else(|| io::Error::from(io::ErrorKind::StorageFull))?;
        let mut result = Ok(());
        for path in removed {
            match fs::remove_file(path) {
                // Its bytes are free, too, where an operator has removed it.
                Err(error) if error.kind() != io::ErrorKind::NotFound => result = Err(error),
                _ => {}
            }
        }
        result
    }

    fn begin(
        folder: &std::path::Path,
        format: &Format,
        index: &Mutex<Index>,
    ) -> io::Result<Growing> {
        let number = index.lock().take_number();
        let path = segment_path(folder, number);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = Arc::new(options.open(&path)?);
        if let Err(error) = file.write_all_at(&format.header(), 0) {
            // Nothing is in it.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let mut index = index.lock();
        index.insert(number, path, Arc::clone(&file), false);
        index.add_bytes(number, HEADER);
        Ok(Growing {
            number,
            file,
            num_records: 0,
        })
    }

    /// After a failed write: what is complete stays, and the next block begins another segment.
    fn close_segment(&mut self) {
        let Some(growing) = self.growing.take() else {
            return;
        };
        // Without this the tail is no complete record, or one whose checksum is wrong: a scan and a read find out.
        let _ = growing
            .file
            .set_len(self.format.offset(growing.num_records));
        if growing.num_records == 0
            && let Some(path) = self.index.lock().remove(growing.number)
        {
            let _ = fs::remove_file(path);
        }
    }
}
