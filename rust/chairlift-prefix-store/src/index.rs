//! Which block is where. Bytes are bounded: the segment that was used longest ago goes, as a whole.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    error::StoreError,
    segment::{Format, Name},
};

/// A file of blocks.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    file: Arc<File>,
    names: Vec<Name>,
    num_bytes: u64,
    last_use: u64,
    is_foreign: bool,
}

/// The segments of a folder, and the place of each block.
#[derive(Debug)]
pub(crate) struct Index {
    format: Format,
    max_bytes: u64,
    num_bytes: u64,
    segments: BTreeMap<u64, Segment>,
    places: HashMap<Name, (u64, u32)>,
    /// Counts uses.
    time: u64,
    next_number: u64,
}

impl Index {
    /// Reads the names of all blocks in a folder.
    ///
    /// # Errors
    /// The folder cannot be read; a segment that cannot is left out.
    pub(crate) fn scan(folder: &Path, format: Format, max_bytes: u64) -> Result<Self, StoreError> {
        let mut index = Self {
            format,
            max_bytes,
            num_bytes: 0,
            segments: BTreeMap::new(),
            places: HashMap::new(),
            time: 0,
            next_number: 0,
        };
        let mut found: Vec<_> = fs::read_dir(folder)
            .map_err(StoreError::io(folder))?
            .filter_map(Result::ok)
            .filter_map(|entry| Some((number_of(&entry.path())?, entry.path())))
            .collect();
        found.sort_unstable();
        index.next_number = found.last().map_or(0, |last| last.0 + 1);
        for (number, path) in found {
            index.scan_segment(number, path);
        }
        Ok(index)
    }

    fn scan_segment(&mut self, number: u64, path: PathBuf) {
        let Ok(file) = File::open(&path) else {
            return;
        };
        let num_bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let names = self.format.scan(&file, num_bytes).unwrap_or_default();
        let is_foreign = names.is_none();
        self.insert(number, path, Arc::new(file), is_foreign);
        self.add_bytes(number, num_bytes);
        for name in names.unwrap_or_default() {
            self.add(number, name);
        }
    }

    /// A number for the next segment, which no other has.
    pub(crate) fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Enters a segment without blocks.
    pub(crate) fn insert(&mut self, number: u64, path: PathBuf, file: Arc<File>, is_foreign: bool) {
        self.time += 1;
        let segment = Segment {
            path,
            file,
            names: Vec::new(),
            num_bytes: 0,
            last_use: if is_foreign { 0 } else { self.time },
            is_foreign,
        };
        self.segments.insert(number, segment);
    }

    /// Counts bytes of a segment; nothing if it is gone.
    pub(crate) fn add_bytes(&mut self, number: u64, num_bytes: u64) {
        if let Some(segment) = self.segments.get_mut(&number) {
            segment.num_bytes += num_bytes;
            self.num_bytes += num_bytes;
        }
    }

    /// Enters the next block of a segment.
    pub(crate) fn add(&mut self, number: u64, name: Name) {
        if let Some(segment) = self.segments.get_mut(&number) {
            self.places
                .insert(name, (number, segment.names.len() as u32));
            segment.names.push(name);
        }
    }

    /// Whether a block can be loaded.
    pub(crate) fn contains(&self, name: &Name) -> bool {
        self.places.contains_key(name)
    }

    /// The file of a block and where its record begins; a use of its segment.
    pub(crate) fn find(&mut self, name: &Name) -> Option<(Arc<File>, u64)> {
        let (number, place) = *self.places.get(name)?;
        let segment = self.segments.get_mut(&number)?;
        self.time += 1;
        segment.last_use = self.time;
        Some((Arc::clone(&segment.file), self.format.offset(place)))
    }

    /// Forgets a block that cannot be read.
    pub(crate) fn forget(&mut self, name: &Name) {
        self.places.remove(name);
    }

    /// Takes segments out until so many bytes more fit, never the one that is written, and returns their files, which the
    /// caller removes; None if they do not fit.
    pub(crate) fn make_room(&mut self, num_bytes: u64, writing: u64) -> Option<Vec<PathBuf>> {
        let mut removed = Vec::new();
        while self.num_bytes + num_bytes > self.max_bytes {
            let others = self.segments.iter().filter(|(n, _)| **n != writing);
            let (&oldest, _) = others.min_by_key(|(_, segment)| segment.last_use)?;
            removed.extend(self.remove(oldest));
        }
        Some(removed)
    }

    /// Takes a segment out and returns its file.
    pub(crate) fn remove(&mut self, number: u64) -> Option<PathBuf> {
        let segment = self.segments.remove(&number)?;
        self.num_bytes -= segment.num_bytes;
        for name in &segment.names {
            if self.places.get(name).is_some_and(|place| place.0 == number) {
                self.places.remove(name);
            }
        }
        Some(segment.path)
    }

    pub(crate) fn num_blocks(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    pub(crate) fn num_foreign(&self) -> usize {
        let segments = self.segments.values();
        segments.filter(|segment| segment.is_foreign).count()
    }
}

/// The path of a segment.
pub(crate) fn segment_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:016}.segment"))
}

fn number_of(path: &Path) -> Option<u64> {
    if path.extension()? != "segment" {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}
