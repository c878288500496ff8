//! The form of a segment file.
//!
//! ```text
//! header 64     magic 8 | version 4 | 0 | bytes of a block 8 | layout 32 | 0
//! record        name 32 | checksum 32 | keys and values of a block
//! record        ...
//! ```
//!
//! All records of a segment are of one size, so that a scan reads the names alone. The checksum is keyed and covers name
//! and block: it tells damage, and what was written without the key.

use std::{fs::File, io, os::unix::fs::FileExt};

/// Names a block with everything before it, of one tenant; without the key it cannot be computed.
pub type Name = [u8; 32];

pub(crate) const HEADER: u64 = 64;
/// Bytes of a record before those of the block.
pub(crate) const RECORD_HEADER: usize = 64;
const MAGIC: &[u8; 8] = b"CHLPREFX";
const VERSION: u32 = 1;

/// What the records of a store look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) layout: [u8; 32],
    pub(crate) block_bytes: usize,
    checksum_key: [u8; 32],
}

impl Format {
    /// The format of blocks of one layout under a key.
    pub(crate) fn new(layout: [u8; 32], key: &[u8; 32], block_bytes: usize) -> Self {
        let mut material = [0; 64];
        material[..32].copy_from_slice(key);
        material[32..].copy_from_slice(&layout);
        Self {
            layout,
            block_bytes,
            checksum_key: blake3::derive_key("chairlift prefix store checksums 1", &material),
        }
    }

    /// Bytes of a record.
    pub(crate) fn record_bytes(&self) -> u64 {
        (RECORD_HEADER + self.block_bytes) as u64
    }

    /// Where a record begins.
    pub(crate) fn offset(&self, place: u32) -> u64 {
        HEADER + u64::from(place) * self.record_bytes()
    }

    /// The header of a segment.
    pub(crate) fn header(&self) -> [u8; HEADER as usize] {
        let mut header = [0; HEADER as usize];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&(self.block_bytes as u64).to_le_bytes());
        header[24..56].copy_from_slice(&self.layout);
        header
    }

    /// Fills in the header of a record, which lies before its block.
    pub(crate) fn seal(&self, name: &Name, record: &mut [u8]) {
        let checksum = self.checksum(name, &record[RECORD_HEADER..]);
        record[..32].copy_from_slice(name);
        record[32..RECORD_HEADER].copy_from_slice(&checksum);
    }

    /// Whether a record is as it was sealed under this name.
    pub(crate) fn is_sealed(&self, name: &Name, record: &[u8]) -> bool {
        let expected = self.checksum(name, &record[RECORD_HEADER..]);
        record[..32] == *name && record[32..RECORD_HEADER] == expected
    }

    fn checksum(&self, name: &Name, block: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.checksum_key);
        hasher.update(name).update(block);
        *hasher.finalize().as_bytes()
    }

    /// The names of the complete records of a file; None if it is of another format.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn scan(&self, file: &File, num_bytes: u64) -> io::Result<Option<Vec<Name>>> {
        let mut header = [0; HEADER as usize];
        if num_bytes < HEADER {
            return Ok(None);
        }
        file.read_exact_at(&mut header, 0)?;
        if header != self.header() {
            return Ok(None);
        }
        let num_records = (num_bytes - HEADER) / self.record_bytes();
        let name = |place| {
            let mut name = [0; 32];
            file.read_exact_at(&mut name, self.offset(place))?;
            Ok(name)
        };
        (0..num_records as u32)
            .map(name)
            .collect::<io::Result<_>>()
            .map(Some)
    }
}
