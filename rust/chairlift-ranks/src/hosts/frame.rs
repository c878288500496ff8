//! A frame: what one rank sends another at a time.

/// Bytes in front of those of a frame.
pub(super) const HEADER_BYTES: usize = 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Words between two ranks before there are steps.
    Text,
    /// What rank 0 tells all others to compute.
    Message,
    /// The columns of one rank.
    Part,
    /// The group has ended; the body is the word of the cause.
    Broken,
}

const KINDS: [Kind; 4] = [Kind::Text, Kind::Message, Kind::Part, Kind::Broken];

/// What is known of a frame before its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Of the message or part, on every connection of the group; 0 of the others.
    pub(super) number: u32,
    /// Bytes that follow.
    pub(super) len: u32,
    /// CRC-32 of the bytes that follow.
    pub(super) checksum: u32,
}

impl Header {
    /// The header of a body, of less than 4 GiB.
    pub(super) fn of(kind: Kind, number: u32, body: &[u8]) -> Self {
        Self {
            kind,
            number,
            len: body.len() as u32,
            checksum: crc32fast::hash(body),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        let words = [
            kind.unwrap_or(0) as u32,
            self.number,
            self.len,
            self.checksum,
        ];
        let mut bytes = [0; HEADER_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// None where the bytes are of no frame.
    pub(super) fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[4 * at..4 * at + 4]);
            u32::from_le_bytes(word)
        };
        Some(Self {
            kind: *KINDS.get(word(0) as usize)?,
            number: word(1),
            len: word(2),
            checksum: word(3),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_goes_through_bytes(kind in 0..KINDS.len(), number: u32, body: Vec<u8>) {
            let header = Header::of(KINDS[kind], number, &body);
            prop_assert_eq!(Header::from_bytes(&header.to_bytes()), Some(header));
        }

        #[test]
        fn any_bytes_are_a_header_or_none(bytes: [u8; HEADER_BYTES]) {
            if let Some(header) = Header::from_bytes(&bytes) {
                prop_assert_eq!(header.to_bytes(), bytes);
            }
        }
    }
}
