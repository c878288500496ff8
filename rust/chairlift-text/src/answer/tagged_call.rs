//! A function call as tags: `<function=name><parameter=key>value</parameter></function>`.
//!
//! The arguments become JSON: parameters that are texts are quoted and stream; others get the type that their schema says,
//! once they are complete.
use super::{
    Frame, Input, Kind, MAX_UNDECIDED, Options, Parameter, Part, Sink, State, escaped,
    undecided_from,
};

const END: &str = "</parameter>";
/// The longest value that is held until it is known to be JSON.
const MAX_JSON: usize = 1 << 16;

/// One call.
#[derive(Clone, Debug)]
pub(super) struct TaggedCall {
    at: At,
    function: String,
    /// Whose value is read, if it is not a text alone.
    parameter: Option<Parameter>,
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

/// What follows from the text that is there.
pub(super) enum Step {
    /// More text decides.
    Wait,
    /// The call goes on.
    Same,
    Become(State),
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
            parameter: None,
            has_members: false,
        }
    }

    /// Decides the next part.
    pub(super) fn step(&mut self, options: &Options, input: &mut Input<'_>, out: Sink<'_>) -> Step {
        match self.at {
            At::Head(head) => match tag(input, head, "<function=") {
                Tag::Open => Step::Wait,
                Tag::No => {
                    input.pass(head, Kind::Text, out);
                    Step::Become(State::Text { is_first: false })
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

    fn go_on(&mut self, at: At) -> Step {
        self.at = at;
        Step::Same
    }

    fn members(&mut self, options: &Options, input: &mut Input<'_>, out: Sink<'_>) -> Step {
        let white = input.white_len();
        if white == input.rest.len() {
            if input.is_end {
                input.pass(white, Kind::Markup, out);
            }
            return Step::Wait;
        }
        match tag(input, 0, "<parameter=") {
            Tag::Open => return Step::Wait,
            Tag::Word { start, end } => {
                let raw = input.take(end + 1);
                let key = &raw[start..end];
                self.parameter = self.parameter(options, key);
                let is_json = self.parameter.is_some();
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
        let Some(is_closed) = input.begins(white, "</function>") else {
            return Step::Wait;
        };
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
        Step::Become(State::AfterCall(Frame::ToolCall))
    }

    fn parameter(&self, options: &Options, key: &str) -> Option<Parameter> {
        let mut functions = options.functions.iter();
        let function = functions.find(|function| function.name == self.function)?;
        let mut parameters = function.parameters.iter();
        parameters.find(|parameter| parameter.name == key).cloned()
    }

    /// Whether the value that is held is a text, whatever follows.
    fn is_text(&self, start: &str) -> bool {
        let parameter = self.parameter.as_ref();
        start.len() > MAX_JSON
            || parameter
                .is_some_and(|parameter| !start.trim().is_empty() && parameter.is_text_from(start))
    }

    /// A string; the line breaks at its ends belong to the tags.
    fn text(&mut self, is_first: bool, input: &mut Input<'_>, out: Sink<'_>) -> Step {
        if is_first {
            let Some(has_break) = input.begins(0, "\n") else {
                return Step::Wait;
            };
            input.pass(usize::from(has_break), Kind::Markup, out);
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
            return Step::Wait;
        }
        let raw = input.take(decided - len + END.len());
        out(Part {
            kind: Kind::Arguments,
            text: "\"",
            raw,
        });
        self.go_on(At::Members)
    }

    fn json(&mut self, scanned: usize, input: &mut Input<'_>, out: Sink<'_>) -> Step {
        let from = scanned.saturating_sub(END.len());
        let from = (0..=from)
            .rfind(|at| input.rest.is_char_boundary(*at))
            .unwrap_or(0);
        let Some(found) = input.rest[from..].find(END).map(|at| from + at) else {
            // What may begin the closing tag is not of the value.
            let decided = &input.rest[..undecided_from(input, END)];
            if self.is_text(decided) {
                out(Part {
                    kind: Kind::Arguments,
                    text: "\"",
                    raw: "",
                });
                return self.go_on(At::Text { is_first: true });
            }
            if input.is_end {
                input.pass(input.rest.len(), Kind::Arguments, out);
            }
            self.at = At::Json(input.rest.len());
            return Step::Wait;
        };
        let parameter = self.parameter.take();
        let parameter = parameter.expect("invariant: a value that is held has a parameter");
        let text = parameter.json_of(&input.rest[..found]);
        let raw = input.take(found + END.len());
        out(Part {
            kind: Kind::Arguments,
            text: &text,
            raw,
        });
        self.go_on(At::Members)
    }
}
