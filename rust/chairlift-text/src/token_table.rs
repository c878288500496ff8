//! What each token id contributes to text.

use std::str::from_utf8;

const SPECIAL: u8 = 1;
const BYTE: u8 = 2;

/// The bytes and kind of every token id; shared by all requests.
#[derive(Clone, Debug)]
pub struct TokenTable {
    tokens: Strings,
    /// Where they differ from `tokens`: what an id contributes as the first token of a text.
    first_tokens: Option<Strings>,
    kinds: Vec<u8>,
    strip_first_space: bool,
}

impl TokenTable {
    /// Builds the table from the bytes of each id.
    ///
    /// Ids in `special` are left out of a text that skips special tokens. Ids in `byte_fallback` stand for
    /// one raw byte (`<0xNN>` of `SentencePiece` models): a run of them is a text only as a whole.
    /// `strip_first_space` drops one leading space of the whole text. An id without bytes contributes
    /// nothing and ends no byte run; ids in the lists that are outside the table are ignored.
    pub fn new(
        tokens: &[Vec<u8>],
        special: &[u32],
        byte_fallback: &[u32],
        strip_first_space: bool,
    ) -> Self {
        let mut kinds = vec![0; tokens.len()];
        for (ids, kind) in [(special, SPECIAL), (byte_fallback, BYTE)] {
            for &id in ids {
                if let Some(entry) = kinds.get_mut(id as usize) {
                    *entry |= kind;
                }
            }
        }
        Self {
            tokens: Strings::new(tokens),
            first_tokens: None,
            kinds,
            strip_first_space,
        }
    }

    /// Gives each id other bytes for where it is the first token of a text.
    ///
    /// Metaspace decoders leave all spaces out of the first token, wherever in it they are.
    #[must_use]
    pub fn with_first_tokens(mut self, first_tokens: &[Vec<u8>]) -> Self {
        self.first_tokens = Some(Strings::new(first_tokens));
        self
    }

    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes that an id contributes behind another; none outside the table.
    pub fn bytes(&self, token: i32) -> &[u8] {
        self.get(token).map_or(&[], |token| token.piece.bytes())
    }

    /// Whether a text that skips special tokens leaves this one out.
    pub fn is_special(&self, token: i32) -> bool {
        let kind = usize::try_from(token)
            .ok()
            .and_then(|id| self.kinds.get(id));
        kind.is_some_and(|kind| kind & SPECIAL != 0)
    }

    pub(crate) fn strip_first_space(&self) -> bool {
        self.strip_first_space
    }

    /// The token with this id, if it contributes anything.
    pub(crate) fn get(&self, token: i32) -> Option<Token<'_>> {
        let id = usize::try_from(token).ok()?;
        let kind = *self.kinds.get(id)?;
        let piece = self.tokens.get(id);
        (!piece.bytes().is_empty()).then_some(Token { id, kind, piece })
    }

    /// What `token` contributes as the first of a text.
    pub(crate) fn first_piece<'a>(&'a self, token: &Token<'a>) -> Piece<'a> {
        match &self.first_tokens {
            Some(first_tokens) => first_tokens.get(token.id),
            None => token.piece,
        }
    }
}

/// A view of one entry.
pub(crate) struct Token<'a> {
    id: usize,
    kind: u8,
    pub(crate) piece: Piece<'a>,
}

/// The bytes of a token; nearly all tokens are whole characters, and need not be looked at again.
#[derive(Clone, Copy)]
pub(crate) enum Piece<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Piece<'a> {
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl Token<'_> {
    pub(crate) fn is_special(&self) -> bool {
        self.kind & SPECIAL != 0
    }

    pub(crate) fn is_byte(&self) -> bool {
        self.kind & BYTE != 0
    }
}

/// Many short byte strings in two allocations. String `i` is at `spans[i]`, counted over `text` and `bytes`:
///
/// ```text
/// |  text: those that are UTF-8  |  bytes: the others  |
/// ```
#[derive(Clone, Debug)]
struct Strings {
    text: String,
    bytes: Vec<u8>,
    spans: Vec<(u32, u32)>,
}

impl Strings {
    fn new(strings: &[Vec<u8>]) -> Self {
        let texts = strings.iter().filter_map(|string| from_utf8(string).ok());
        let text: String = texts.collect();
        let (mut text_end, mut bytes) = (0, Vec::new());
        let span = |string: &Vec<u8>| {
            let end = if from_utf8(string).is_ok() {
                text_end += string.len();
                text_end
            } else {
                bytes.extend_from_slice(string);
                text.len() + bytes.len()
            };
            let offset = |i| u32::try_from(i).expect("invariant: a vocabulary is below 4 GiB");
            (offset(end - string.len()), offset(end))
        };
        let spans = strings.iter().map(span).collect();
        Self { text, bytes, spans }
    }

    /// Empty outside the list.
    fn get(&self, i: usize) -> Piece<'_> {
        let (start, end) = self.spans.get(i).copied().unwrap_or_default();
        let (start, end) = (start as usize, end as usize);
        if end <= self.text.len() {
            Piece::Text(&self.text[start..end])
        } else {
            Piece::Bytes(&self.bytes[start - self.text.len()..end - self.text.len()])
        }
    }
}
