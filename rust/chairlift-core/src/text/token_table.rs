//! What each token id contributes to text.

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
        tokens: Vec<Vec<u8>>,
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
    pub fn with_first_tokens(mut self, first_tokens: Vec<Vec<u8>>) -> Self {
        self.first_tokens = Some(Strings::new(first_tokens));
        self
    }

    pub fn vocab_size(&self) -> usize {
        self.kinds.len()
    }

    pub(super) fn strip_first_space(&self) -> bool {
        self.strip_first_space
    }

    /// The token with this id, if it contributes anything.
    pub(super) fn get(&self, token: i32) -> Option<Token<'_>> {
        let id = usize::try_from(token).ok()?;
        let kind = *self.kinds.get(id)?;
        let bytes = self.tokens.get(id);
        (!bytes.is_empty()).then_some(Token { id, kind, bytes })
    }

    /// What `token` contributes as the first of a text.
    pub(super) fn first_bytes<'a>(&'a self, token: &Token<'a>) -> &'a [u8] {
        match &self.first_tokens {
            Some(first_tokens) => first_tokens.get(token.id),
            None => token.bytes,
        }
    }
}

/// A view of one entry.
pub(super) struct Token<'a> {
    id: usize,
    kind: u8,
    pub(super) bytes: &'a [u8],
}

impl Token<'_> {
    pub(super) fn is_special(&self) -> bool {
        self.kind & SPECIAL != 0
    }

    pub(super) fn is_byte(&self) -> bool {
        self.kind & BYTE != 0
    }
}

/// Many short byte strings in one allocation: string `i` is `bytes[offsets[i]..offsets[i + 1]]`.
#[derive(Clone, Debug)]
struct Strings {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
}

impl Strings {
    fn new(strings: Vec<Vec<u8>>) -> Self {
        let mut bytes = Vec::with_capacity(strings.iter().map(Vec::len).sum());
        let mut offsets = Vec::with_capacity(strings.len() + 1);
        offsets.push(0);
        for string in strings {
            bytes.extend(string);
            offsets
                .push(u32::try_from(bytes.len()).expect("invariant: a vocabulary is below 4 GiB"));
        }
        Self { bytes, offsets }
    }

    /// Empty outside the list.
    fn get(&self, i: usize) -> &[u8] {
        match self.offsets.get(i..i + 2) {
            Some(&[start, end]) => &self.bytes[start as usize..end as usize],
            _ => &[],
        }
    }
}
