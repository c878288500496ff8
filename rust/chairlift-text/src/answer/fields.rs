//! The parser of one answer in the steps of a scheduler: where a step's fields lie, and the ids of function calls.
use super::{Kind, Options, Parser};
use std::ops::Range;

/// Letters and digits of an id: what every chat template takes.
const ID_LEN: usize = 9;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// New output that is no text, of one answer in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub content: Content,
    /// Where it lies in the text of all fields of the step.
    pub text: Range<usize>,
}

/// What a field is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Reasoning,
    /// The name of a function that is called.
    Call {
        position: u32,
        id: CallId,
    },
    /// The next piece of the arguments of a call.
    Arguments {
        position: u32,
    },
}

/// Names a call, so that a later turn can answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId([u8; ID_LEN]);

impl CallId {
    /// The id of a call by a key that the caller has drawn, and its place in the answer.
    pub fn new(id_key: u64, position: u32) -> Self {
        let mut left = mix(id_key ^ u64::from(position));
        Self(std::array::from_fn(|_| {
            let digit = left % ALPHABET.len() as u64;
            left /= ALPHABET.len() as u64;
            ALPHABET[digit as usize]
        }))
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Makes the fields of one answer.
#[derive(Clone, Debug)]
pub struct Fields {
    parser: Parser,
    /// Drawn by the caller; ids are a function of it and the place of the call.
    id_key: u64,
    num_calls: u32,
}

impl Fields {
    pub fn new(options: Options, id_key: u64) -> Self {
        Self {
            parser: Parser::new(options),
            id_key,
            num_calls: 0,
        }
    }

    /// The same for another answer of the request, whose calls have ids of their own.
    pub fn set_answer(&mut self, index: u32) {
        self.id_key = mix(self.id_key.wrapping_add(u64::from(index) << 32));
    }

    /// Takes a piece of the answer, its last one at the end: text goes to `text`, the rest to `fields` and `field_text`.
    pub fn push(
        &mut self,
        piece: &str,
        is_end: bool,
        text: &mut String,
        fields: &mut Vec<Field>,
        field_text: &mut String,
    ) {
        let (first, id_key, num_calls) = (fields.len(), self.id_key, &mut self.num_calls);
        let mut take = |part: super::Part<'_>| {
            let content = match part.kind {
                Kind::Text => {
                    text.push_str(part.text);
                    return;
                }
                Kind::Reasoning => Content::Reasoning,
                Kind::Call => {
                    *num_calls += 1;
                    let position = *num_calls - 1;
                    let id = CallId::new(id_key, position);
                    Content::Call { position, id }
                }
                Kind::Arguments => Content::Arguments {
                    position: num_calls.saturating_sub(1),
                },
                Kind::Markup => return,
            };
            let start = field_text.len();
            field_text.push_str(part.text);
            match fields[first..].last_mut() {
                Some(last) if last.content == content => last.text.end = field_text.len(),
                _ => fields.push(Field {
                    content,
                    text: start..field_text.len(),
                }),
            }
        };
        self.parser.push(piece, &mut take);
        if is_end {
            self.parser.finish(&mut take);
        }
    }
}

/// The finalizer of `SplitMix64`.
fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
