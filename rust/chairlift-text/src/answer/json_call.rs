//! A function call as a JSON object: `{"name": "f", "arguments": {..}}`, read byte by byte.
//!
//! The object itself is strict; of the arguments only brackets and texts are followed, so that they stream. Arguments
//! may be called `parameters`, and come before the name.
use super::{Frame, json_text::JsonText};

/// The name of a function, in bytes.
const MAX_NAME: usize = 128;
/// The members that a call may have; of those but the name and the arguments the values are left out.
const MEMBERS: [&str; 6] = ["name", "arguments", "parameters", "type", "id", "index"];

/// What [`JsonCall::feed`] has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// More text decides.
    More,
    /// Everything before the arguments.
    Head,
    /// A piece of the arguments.
    Values,
    /// The rest of the object.
    Done,
    /// It is no call.
    Malformed,
}

/// One call.
#[derive(Clone, Debug)]
pub(super) struct JsonCall {
    /// Bytes before the object.
    pub(super) head: usize,
    pub(super) frame: Frame,
    /// Bytes of the input that are read but not taken.
    scan: usize,
    at: At,
    word: String,
    name: String,
    values: Values,
    /// Where arguments are that came before the name.
    early: Option<(usize, usize)>,
    has_arguments: bool,
    has_begun: bool,
    /// The arguments are a text that holds their JSON.
    text: Option<JsonText>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Open,
    /// `"`, or `}` where nothing came before.
    Member {
        is_first: bool,
    },
    Key,
    Colon,
    Value,
    Name,
    Skipped,
    Early,
    Arguments,
    After,
}

impl JsonCall {
    /// The object begins `head` bytes on, perhaps after white space.
    pub(super) fn new(head: usize, frame: Frame) -> Self {
        Self {
            head,
            frame,
            scan: head,
            at: At::Open,
            word: String::new(),
            name: String::new(),
            values: Values::default(),
            early: None,
            has_arguments: false,
            has_begun: false,
            text: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its head was taken.
    pub(super) fn begin(&mut self) {
        (self.has_begun, self.scan) = (true, 0);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// What a piece of the arguments says, where they are a text.
    pub(super) fn said(&mut self, raw: &str) -> Option<String> {
        Some(self.text.as_mut()?.feed(raw))
    }

    /// Arguments that came before the name, in the whole text of the call.
    pub(super) fn early_values<'a>(&self, raw: &'a str) -> Option<&'a str> {
        self.early.map(|(start, end)| &raw[start..end])
    }

    /// Reads on in `rest`, which begins where the last part ended; how many bytes what was read has.
    pub(super) fn feed(&mut self, rest: &str) -> (usize, Fed) {
        loop {
            if self.has_begun && self.at == At::Arguments {
                let (len, is_complete) = self.values.feed(rest);
                if is_complete {
                    self.at = At::After;
                }
                return (
                    len,
                    if len == 0 && !is_complete {
                        Fed::More
                    } else {
                        Fed::Values
                    },
                );
            }
            let Some(&byte) = rest.as_bytes().get(self.scan) else {
                return (0, Fed::More);
            };
            if matches!(self.at, At::Skipped | At::Early) {
                let (len, is_complete) = self.values.feed(&rest[self.scan..]);
                self.scan += len;
                if let (At::Early, Some((_, end))) = (self.at, &mut self.early) {
                    *end = self.scan;
                }
                if is_complete {
                    self.at = At::After;
                }
                continue;
            }
            if self.at == At::Value && self.starts_arguments(byte) {
                return (self.scan, Fed::Head);
            }
            if byte == b'}' && matches!(self.at, At::After | At::Member { is_first: true }) {
                let is_call = !self.name.is_empty();
                return (
                    self.scan + 1,
                    if is_call { Fed::Done } else { Fed::Malformed },
                );
            }
            if !self.read(byte) {
                return (0, Fed::Malformed);
            }
        }
    }

    /// Whether the arguments begin with this byte, and their call with them.
    fn starts_arguments(&mut self, byte: u8) -> bool {
        let is_arguments = matches!(self.word.as_str(), "arguments" | "parameters");
        let has_name = !self.name.is_empty() && !self.has_arguments;
        let starts = is_arguments && has_name && !byte.is_ascii_whitespace();
        if starts {
            self.at = At::Arguments;
            self.values = Values::default();
            self.text = (byte == b'"').then(JsonText::default);
            self.has_arguments = true;
        }
        starts
    }

    /// Follows the frame of the object by one byte; false: it is no call.
    fn read(&mut self, byte: u8) -> bool {
        let is_white = byte.is_ascii_whitespace();
        match (self.at, byte) {
            (At::Open | At::Member { .. } | At::Colon | At::Value | At::After, _) if is_white => {}
            (At::Open, b'{') => self.at = At::Member { is_first: true },
            (At::Member { .. }, b'"') => {
                self.word.clear();
                self.at = At::Key;
            }
            (At::Key, b'"') => {
                if !MEMBERS.contains(&self.word.as_str()) {
                    return false;
                }
                self.at = At::Colon;
            }
            (At::Colon, b':') => self.at = At::Value,
            (At::Value, _) => return self.read_value(byte),
            (At::Name, b'"') => {
                self.name = std::mem::take(&mut self.word);
                self.at = At::After;
                self.scan += 1;
                return !self.name.is_empty();
            }
            // No function has such a name, nor a member.
            (At::Key | At::Name, b'\\' | 0..=0x1f | 0x7f..) => return false,
            (At::Key | At::Name, _) => {
                self.word.push(char::from(byte));
                if self.word.len() > MAX_NAME {
                    return false;
                }
            }
            (At::After, b',') => self.at = At::Member { is_first: false },
            _ => return false,
        }
        self.scan += 1;
        true
    }

    /// Begins a value; what begins with `byte` is read by the state that follows.
    fn read_value(&mut self, byte: u8) -> bool {
        match self.word.as_str() {
            "name" if byte == b'"' && self.name.is_empty() => {
                self.word.clear();
                self.at = At::Name;
                self.scan += 1;
                return true;
            }
            "name" => return false,
            "arguments" | "parameters" if self.has_arguments => return false,
            "arguments" | "parameters" => {
                self.early = Some((self.scan, self.scan));
                self.has_arguments = true;
                self.at = At::Early;
            }
            _ => self.at = At::Skipped,
        }
        self.values = Values::default();
        true
    }
}

/// Follows one JSON value by its brackets and texts alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Values {
    depth: usize,
    in_text: bool,
    is_escaped: bool,
}

impl Values {
    /// Reads on; returns the bytes that belong to the value, and whether it is complete with them.
    pub(super) fn feed(&mut self, text: &str) -> (usize, bool) {
        for (i, byte) in text.bytes().enumerate() {
            if self.in_text {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => {
                        self.in_text = false;
                        if self.depth == 0 {
                            return (i + 1, true);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 1 => self.depth -= 1,
                b'}' | b']' if self.depth == 1 => return (i + 1, true),
                b'}' | b']' | b',' if self.depth == 0 => return (i, true),
                _ if self.depth == 0 && byte.is_ascii_whitespace() => return (i, true),
                _ => {}
            }
        }
        (text.len(), false)
    }
}
