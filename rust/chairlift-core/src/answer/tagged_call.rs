//! A function call as tags: `<function=name><parameter=key>value</parameter></function>`.
//!
//! The arguments become JSON: parameters that are strings are quoted and stream; others are kept as they are if they are
//! JSON, once they are complete.
use super::{
    Frame, Function, Input, Kind, MAX_UNDECIDED, Options, Part, Sink, State, undecided_from,
};

const END: &str = "</parameter>";
/// The longest value that is held until it is known to be JSON.
const MAX_JSON: usize = 1 << 16;

/// One call.
#[derive(Clone, Debug)]
pub(super) struct TaggedCall {
    at: At,
    function: String,
    has_members: bool,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The function's tag follows after so many bytes.
    Head(usize),
    Members,
    /// A string whose first line break may still follow.
    Text {
        is_first: bool,
    },
    /// So many bytes are held in which it does not end.
    Json(usize),
}

enum Tag {
    /// The word in a tag, and where the tag ends.
    Word {
        start: usize,
        end: usize,
    },
    Open,
    No,
}

/// The tag `<kind=word>` that the text begins with, after white space.
fn tag(input: &Input<'_>, at: usize, kind: &str) -> Tag {
    let rest = &input.rest[at..];
    let at = input.rest.len() - rest.trim_start().len();
    match input.begins(at, kind) {
        None => return Tag::Open,
        Some(false) => return Tag::No,
        Some(true) => {}
    }
    let start = at + kind.len();
    let word = &input.rest[start..];
    match word.find(['>', '<', '\n']) {
        None if !input.is_end && input.rest.len() <= MAX_UNDECIDED => Tag::Open,
        Some(len) if len > 0 && word[len..].starts_with('>') => Tag::Word {
            start,
            end: start + len,
        },
        _ => Tag::No,
    }
}

impl TaggedCall {
    /// The function's tag follows `head` bytes on.
    pub(super) fn new(head: usize) -> Self {
        Self {
            at: At::Head(head),
            function: String::new(),
            has_members: false,
        }
    }

    /// Decides the next part; Some: what follows, which may be the call itself.
    pub(super) fn step(
        &mut self,
        options: &Options,
        input: &mut Input<'_>,
        out: Sink<'_>,
    ) -> Option<State> {
        match self.at {
            At::Head(head) => match tag(input, head, "<function=") {
                Tag::Open => None,
                Tag::No => {
                    input.pass(head, Kind::Text, out);
                    Some(State::Text { is_first: false })
                }
                Tag::Word { start, end } => {
                    let raw = input.take(end + 1);
                    let text = &raw[start..end];
                    text.clone_into(&mut self.function);
                    out(Part {
                        kind: Kind::Call,
                        text,
                        raw,
                    });
                    self.go_on(At::Members)
                }
            },
            At::Members => self.members(options, input, out),
            At::Text { is_first } => self.text(is_first, input, out),
            At::Json(scanned) => self.json(scanned, input, out),
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the answer of a step")]
    fn go_on(&mut self, at: At) -> Option<State> {
        self.at = at;
        Some(State::Tagged(self.clone()))
    }

    fn members(
        &mut self,
        options: &Options,
        input: &mut Input<'_>,
        out: Sink<'_>,
    ) -> Option<State> {
        let white = input.white_len();
        if white == input.rest.len() {
            if input.is_end {
                input.pass(white, Kind::Markup, out);
            }
            return None;
        }
        match tag(input, 0, "<parameter=") {
            Tag::Open => return None,
            Tag::Word { start, end } => {
                let raw = input.take(end + 1);
                let key = &raw[start..end];
                let is_json = self.is_json(options, key);
                let before = if self.has_members { ", " } else { "{" };
                let quote = if is_json { "" } else { "\"" };
                let text = format!("{before}\"{}\": {quote}", escaped(key));
                out(Part {
                    kind: Kind::Arguments,
                    text: &text,
                    raw,
                });
                self.has_members = true;
                return self.go_on(if is_json {
                    At::Json(0)
                } else {
                    At::Text { is_first: true }
                });
            }
            Tag::No => {}
        }
        let close = if self.has_members { "}" } else { "{}" };
        let len = "</function>".len();
        let is_closed = input.begins(white, "</function>")?;
        let raw = if is_closed {
            input.take(white + len)
        } else {
            ""
        };
        out(Part {
            kind: Kind::Arguments,
            text: close,
            raw,
        });
        // What has no closing tag may still have that of the call.
        Some(State::AfterCall(Frame::ToolCall))
    }

    fn is_json(&self, options: &Options, key: &str) -> bool {
        let is_own = |function: &&Function| function.name == self.function;
        let function = options.functions.iter().find(is_own);
        function.is_some_and(|function| function.json_parameters.iter().any(|name| name == key))
    }

    /// A string; the line breaks at its ends belong to the tags.
    fn text(&mut self, is_first: bool, input: &mut Input<'_>, out: Sink<'_>) -> Option<State> {
        if is_first {
            input.pass(usize::from(input.begins(0, "\n")?), Kind::Markup, out);
        }
        let end = input.rest.find(END);
        let decided = end.unwrap_or_else(|| undecided_from(input, END));
        let mut len = decided;
        if end.is_some() || !input.is_end {
            len -= usize::from(input.rest[..decided].ends_with('\n'));
        }
        let raw = input.take(len);
        out(Part {
            kind: Kind::Arguments,
            text: &escaped(raw),
            raw,
        });
        if end.is_none() {
            self.at = At::Text {
                is_first: is_first && input.is_end,
            };
            return None;
        }
        let raw = input.take(decided - len + END.len());
        out(Part {
            kind: Kind::Arguments,
            text: "\"",
            raw,
        });
        self.go_on(At::Members)
    }

    fn json(&mut self, scanned: usize, input: &mut Input<'_>, out: Sink<'_>) -> Option<State> {
        let from = scanned.saturating_sub(END.len());
        let from = (0..=from)
            .rfind(|at| input.rest.is_char_boundary(*at))
            .unwrap_or(0);
        let Some(found) = input.rest[from..].find(END).map(|at| from + at) else {
            if input.is_end {
                input.pass(input.rest.len(), Kind::Arguments, out);
            } else if input.rest.len() > MAX_JSON {
                out(Part {
                    kind: Kind::Arguments,
                    text: "\"",
                    raw: "",
                });
                return self.go_on(At::Text { is_first: true });
            }
            self.at = At::Json(input.rest.len());
            return None;
        };
        let value = input.rest[..found].trim();
        let quoted;
        let text = if serde_json::from_str::<serde_json::Value>(value).is_ok() {
            value
        } else {
            quoted = format!("\"{}\"", escaped(value));
            &quoted
        };
        let raw = input.take(found + END.len());
        out(Part {
            kind: Kind::Arguments,
            text,
            raw,
        });
        self.go_on(At::Members)
    }
}

/// A text inside the quotes of JSON.
fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
