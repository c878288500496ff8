//! A recurrent state in records of the size of a block, so that all records of a segment are of one size.
//!
//! ```text
//! state     [ layer 0 | layer 1 | ...          | 0 ]
//! records   [ piece 0  | piece 1  | piece 2        ]     each by a name of its own
//! ```

use crate::segment::{Name, RECORD_HEADER};

/// The names of the pieces of a state; nothing of it can be told from them.
pub(crate) fn piece_names(state: &Name, num_pieces: usize) -> impl Iterator<Item = Name> {
    let state = *state;
    (0..num_pieces as u64)
        .map(move |piece| *blake3::keyed_hash(&state, &piece.to_le_bytes()).as_bytes())
}

/// Appends the bytes of one piece of a state, which lies in parts; zeros fill the last piece.
pub(crate) fn append_piece(parts: &[&[u8]], piece: usize, piece_bytes: usize, out: &mut Vec<u8>) {
    let end = out.len() + piece_bytes;
    let mut skipped = piece * piece_bytes;
    for part in parts {
        let rest = part.get(skipped..).unwrap_or_default();
        skipped = skipped.saturating_sub(part.len());
        out.extend_from_slice(&rest[..rest.len().min(end - out.len())]);
    }
    out.resize(end, 0);
}

/// Copies a state out of the records of its pieces into its parts.
pub(crate) fn fill_parts(records: &[Vec<u8>], parts: &mut [&mut [u8]]) {
    let mut bytes = records.iter().map(|record| &record[RECORD_HEADER..]);
    let mut left: &[u8] = &[];
    for part in parts {
        let mut part = &mut **part;
        while !part.is_empty() {
            if left.is_empty() {
                let Some(next) = bytes.next() else {
                    return;
                };
                left = next;
            }
            let count = left.len().min(part.len());
            part[..count].copy_from_slice(&left[..count]);
            part = &mut part[count..];
            left = &left[count..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_from_pieces_of_any_size() {
        let bytes: Vec<u8> = (0..100).collect();
        let parts = [&bytes[..7], &[], &bytes[7..50], &bytes[50..]];
        for piece_bytes in [1, 3, 50, 99, 100, 101, 300] {
            let num_pieces = bytes.len().div_ceil(piece_bytes);
            let record = |piece| {
                let mut record = vec![0; RECORD_HEADER];
                append_piece(&parts, piece, piece_bytes, &mut record);
                assert_eq!(record.len(), RECORD_HEADER + piece_bytes);
                record
            };
            let records: Vec<_> = (0..num_pieces).map(record).collect();
            let mut found = vec![0; 100];
            let (first, rest) = found.split_at_mut(7);
            let (second, last) = rest.split_at_mut(43);
            fill_parts(&records, &mut [first, &mut [], second, last]);
            assert_eq!(found, bytes, "{piece_bytes}");
        }
    }

    #[test]
    fn each_piece_of_each_state_has_a_name_of_its_own() {
        let states = [[1; 32], [2; 32]];
        let names = states.iter().flat_map(|state| piece_names(state, 3));
        let names: std::collections::HashSet<_> = names.chain(states).collect();
        assert_eq!(names.len(), 8);
    }
}
