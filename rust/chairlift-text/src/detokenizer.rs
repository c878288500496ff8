//! Token ids to decided text, one token at a time.
//!
//! Two ways in which bytes become text, as the decoders of `tokenizers` have them:
//!
//! - *joined* (`ByteLevel`): bytes of neighbouring tokens form characters; invalid bytes become U+FFFD by the rule of
//!   [`String::from_utf8_lossy`]. At most three bytes, the start of one character, are undecided.
//! - *byte run* (`ByteFallback`): consecutive `<0xNN>` tokens are one text if all of it is valid, else one U+FFFD per
//!   byte. A run is undecided until another token ends it or a byte breaks it; after that its bytes are decided.
use crate::token_table::{Piece, TokenTable};
use std::str::from_utf8;
use std::sync::Arc;

/// The decoder of one answer.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Detokenizer {
    skip_special_tokens: bool,
    any_token: bool,
    any_text: bool,
    run: Run,
    /// The start of a character; of the run inside a run.
    open: Vec<u8>,
    /// Special tokens that are not left out.
    kept: Arc<[i32]>,
}

#[derive(Clone, Debug)]
enum Run {
    /// The last token was not a byte token.
    None,
    /// This text so far.
    Valid(String),
    Broken,
}

impl Detokenizer {
    pub fn new(skip_special_tokens: bool) -> Self {
        Self {
            skip_special_tokens,
            kept: Arc::new([]),
            run: Run::None,
            open: Vec::new(),
            any_token: false,
            any_text: false,
        }
    }

    /// Leaves these special tokens in the text.
    pub fn keep(&mut self, kept: Arc<[i32]>) {
        self.kept = kept;
    }

    /// Appends to `out` what `token` decides.
    pub fn push(&mut self, table: &TokenTable, token: i32, out: &mut String) {
        let id = token;
        let Some(token) = table.get(id) else {
            return;
        };
        if self.skip_special_tokens && token.is_special() && !self.kept.contains(&id) {
            return;
        }
        let piece = if self.any_token {
            token.piece
        } else {
            table.first_piece(&token)
        };
        self.any_token = true;
        let start = out.len();
        if token.is_byte() {
            self.push_run(piece.bytes(), out);
        } else {
            if !matches!(self.run, Run::None) {
                self.end_run(out);
            }
            self.push_joined(piece, out);
        }
        self.strip_first_space(table, start, out);
    }

    /// Appends to `out` what the end of the answer decides.
    pub fn finish(&mut self, table: &TokenTable, out: &mut String) {
        let start = out.len();
        self.end_run(out);
        self.end_character(out);
        self.strip_first_space(table, start, out);
    }

    fn push_joined(&mut self, piece: Piece<'_>, out: &mut String) {
        match piece {
            Piece::Text(text) if self.open.is_empty() => out.push_str(text),
            _ => {
                self.open.extend_from_slice(piece.bytes());
                let rest = decode_lossy(&self.open, out).len();
                self.open.drain(..self.open.len() - rest);
            }
        }
    }

    fn push_run(&mut self, bytes: &[u8], out: &mut String) {
        if matches!(self.run, Run::None) {
            self.end_character(out);
            self.run = Run::Valid(String::new());
        }
        for &byte in bytes {
            let Run::Valid(text) = &mut self.run else {
                out.push(char::REPLACEMENT_CHARACTER);
                continue;
            };
            self.open.push(byte);
            match from_utf8(&self.open) {
                Ok(character) => {
                    text.push_str(character);
                    self.open.clear();
                }
                Err(error) if error.error_len().is_none() => {}
                Err(_) => {
                    push_replacements(text.len() + self.open.len(), out);
                    self.open.clear();
                    self.run = Run::Broken;
                }
            }
        }
    }

    fn end_run(&mut self, out: &mut String) {
        if let Run::Valid(text) = std::mem::replace(&mut self.run, Run::None) {
            if self.open.is_empty() {
                out.push_str(&text);
            } else {
                push_replacements(text.len() + self.open.len(), out);
                self.open.clear();
            }
        }
    }

    /// The character that is open stays incomplete.
    fn end_character(&mut self, out: &mut String) {
        if !self.open.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.open.clear();
        }
    }

    /// Applies the table's rule to the first text of all, which begins at `start`.
    fn strip_first_space(&mut self, table: &TokenTable, start: usize, out: &mut String) {
        if self.any_text || out.len() == start {
            return;
        }
        self.any_text = true;
        if table.strip_first_space() && out[start..].starts_with(' ') {
            out.remove(start);
        }
    }
}

/// Appends the text of `bytes` and returns its end, if that is the start of a character.
fn decode_lossy<'a>(bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    let mut decoded = 0;
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        let invalid = chunk.invalid();
        decoded += chunk.valid().len() + invalid.len();
        if decoded == bytes.len() && is_incomplete(invalid) {
            return invalid;
        }
        if !invalid.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
    &[]
}

/// Whether more bytes can make a character of these.
fn is_incomplete(bytes: &[u8]) -> bool {
    from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

fn push_replacements(count: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count));
}
