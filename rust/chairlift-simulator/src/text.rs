//! The text of tokens, by decoding the whole of it: no state that a delta could be lost in.

use std::str::from_utf8;

use chairlift_text::TokenTable;

use crate::scenario::VOCAB;

/// What single bytes a token can be: characters of two and four bytes, one of one, and one that is never valid.
const BYTES: [u8; 8] = [0xC3, 0xA9, b'a', 0xF0, 0x9F, 0x9A, 0xA1, 0xFF];

/// How a token becomes text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Bytes that form characters with those beside them.
    Joined,
    /// One raw byte; a run of them is text only as a whole.
    Byte,
    /// Left out.
    Special,
}

/// Half of the tokens are words, a quarter raw bytes, the rest lone bytes and one special token in sixteen.
fn kind(token: i32) -> Kind {
    match token % 16 {
        3 | 7 | 11 | 15 => Kind::Byte,
        6 => Kind::Special,
        _ => Kind::Joined,
    }
}

fn bytes(token: i32) -> Vec<u8> {
    let byte = vec![BYTES[(token / 4) as usize % BYTES.len()]];
    match (kind(token), token % 4) {
        (Kind::Byte, _) | (Kind::Joined, 2) => byte,
        (Kind::Joined, _) => format!(" {token}").into_bytes(),
        (Kind::Special, _) => b"<special>".to_vec(),
    }
}

/// The bytes of each token; made once per thread of exploration.
pub(crate) fn token_table() -> TokenTable {
    let tokens = 0..VOCAB as i32;
    let of = |wanted| {
        tokens
            .clone()
            .filter(move |&token| kind(token) == wanted)
            .map(|token| token as u32)
    };
    let (special, byte): (Vec<_>, Vec<_>) = (of(Kind::Special).collect(), of(Kind::Byte).collect());
    let all: Vec<_> = tokens.clone().map(bytes).collect();
    TokenTable::new(&all, &special, &byte, true)
}

/// Tokens as groups of one kind: each group is decoded by itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    /// The text of all groups but the last.
    closed: String,
    last: Option<(Kind, Vec<u8>)>,
}

impl Groups {
    pub(crate) fn push(&mut self, token: i32) {
        let kind = kind(token);
        if kind == Kind::Special {
            return;
        }
        if self.last.as_ref().is_some_and(|(last, _)| *last != kind) {
            self.closed += &self.decode_last(true);
            self.last = None;
        }
        self.last
            .get_or_insert((kind, Vec::new()))
            .1
            .extend(bytes(token));
    }

    /// The text that no later token changes; with `at_end` all of it.
    pub(crate) fn text(&self, at_end: bool) -> String {
        let text = self.closed.clone() + &self.decode_last(at_end);
        text.strip_prefix(' ')
            .map_or_else(|| text.clone(), str::to_owned)
    }

    fn decode_last(&self, at_end: bool) -> String {
        let Some((kind, bytes)) = &self.last else {
            return String::new();
        };
        let text = String::from_utf8_lossy(bytes);
        // The end may be the start of a character, which a replacement stands for.
        let tail = bytes
            .utf8_chunks()
            .last()
            .map_or(&[][..], |chunk| chunk.invalid());
        let is_open = from_utf8(tail).is_err_and(|error| error.error_len().is_none());
        let is_valid = from_utf8(bytes).map_or_else(|error| error.error_len().is_none(), |_| true);
        match kind {
            Kind::Byte if is_valid && !at_end => String::new(),
            Kind::Byte if is_valid && !is_open => text.into_owned(),
            Kind::Byte => "\u{fffd}".repeat(bytes.len()),
            _ if is_open && !at_end => text[..text.len() - '\u{fffd}'.len_utf8()].to_owned(),
            _ => text.into_owned(),
        }
    }
}
