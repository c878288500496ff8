//! Function calls that are JSON: what they stand in, and where they end.
use super::{
    Input, Kind, MAX_UNDECIDED, Options, Part, Sink, State,
    json_call::{Fed, JsonCall, Values},
};

/// What calls stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    ToolCall,
    /// `[`, `, `, `]`
    List,
    /// `; `
    Bare,
}

/// Takes the answer's start for a call, if it has the form of one.
pub(super) fn bare_call(input: &mut Input<'_>, out: Sink<'_>) -> Option<State> {
    const TAG: &str = "<|python_tag|>";
    let mut head = input.white_len();
    if input.begins(head, TAG)? {
        head += TAG.len();
        head += input.rest[head..].len() - input.rest[head..].trim_start().len();
    }
    if input.begins(head, "{")? {
        return Some(State::Json(JsonCall::new(head, Frame::Bare)));
    }
    input.pass(head, Kind::Text, out);
    Some(State::Text { is_first: false })
}

/// After `[TOOL_CALLS]`, which ends at `head`: a list of objects, one object, or a name.
pub(super) fn mistral_call(head: usize, input: &mut Input<'_>, out: Sink<'_>) -> Option<State> {
    let after = &input.rest[head..];
    let body = after.trim_start();
    let body_at = head + after.len() - body.len();
    match body.as_bytes().first() {
        None if !input.is_end => None,
        Some(b'[') => Some(State::Json(JsonCall::new(body_at + 1, Frame::List))),
        Some(b'{') => Some(State::Json(JsonCall::new(body_at, Frame::Bare))),
        _ => match named_head(body) {
            Named::Yes { name, len } => {
                let raw = input.take(body_at + len);
                let text = &raw[body_at..body_at + name];
                out(Part {
                    kind: Kind::Call,
                    text,
                    raw,
                });
                Some(State::Arguments(Values::default()))
            }
            Named::Open if !input.is_end && body.len() < MAX_UNDECIDED => None,
            Named::Open | Named::No => {
                input.pass(head, Kind::Text, out);
                Some(State::Text { is_first: false })
            }
        },
    }
}

enum Named {
    /// A name of so many bytes; the arguments begin after `len`.
    Yes {
        name: usize,
        len: usize,
    },
    Open,
    No,
}

/// `name`, perhaps `[CALL_ID]id`, perhaps `[ARGS]`, then an object.
fn named_head(body: &str) -> Named {
    let in_name = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
    let name = body.find(|c| !in_name(c)).unwrap_or(body.len());
    let mut at = name;
    for (mark, has_value) in [("[CALL_ID]", true), ("[ARGS]", false)] {
        let rest = &body[at..];
        if rest.len() < mark.len() && mark.starts_with(rest) {
            return Named::Open;
        }
        if rest.starts_with(mark) {
            at += mark.len();
            if has_value {
                at += body[at..].find(|c| !in_name(c)).unwrap_or(body.len() - at);
            }
        }
    }
    let rest = &body[at..];
    let object = rest.trim_start();
    match object.as_bytes().first() {
        None => Named::Open,
        Some(b'{') if name > 0 => Named::Yes {
            name,
            len: at + rest.len() - object.len(),
        },
        Some(_) => Named::No,
    }
}

/// A call that is a JSON object.
pub(super) fn json(
    options: &Options,
    call: &mut JsonCall,
    input: &mut Input<'_>,
    out: Sink<'_>,
) -> Option<State> {
    loop {
        let (len, fed) = call.feed(input.rest);
        let is_open = fed == Fed::More && !input.is_end && input.rest.len() <= MAX_UNDECIDED;
        match fed {
            Fed::More if is_open => return None,
            Fed::Values => {
                let raw = input.take(len);
                let said = call.said(raw);
                let text = said.as_deref().unwrap_or(raw);
                out(Part {
                    kind: Kind::Arguments,
                    text,
                    raw,
                });
            }
            Fed::Head | Fed::Done if call.has_begun() => {
                input.pass(len, Kind::Markup, out);
                return Some(State::AfterCall(call.frame));
            }
            Fed::Head | Fed::Done if call.frame != Frame::Bare || is_known(options, call) => {
                let raw = input.take(len);
                let text = call.name();
                out(Part {
                    kind: Kind::Call,
                    text,
                    raw,
                });
                if fed == Fed::Done {
                    let values = call.early_values(raw).unwrap_or("{}");
                    let said = serde_json::from_str::<String>(values).ok();
                    out(Part {
                        kind: Kind::Arguments,
                        text: said.as_deref().unwrap_or(values),
                        raw: "",
                    });
                    return Some(State::AfterCall(call.frame));
                }
                call.begin();
            }
            Fed::More if call.has_begun() && input.is_end => {
                input.pass(input.rest.len(), Kind::Markup, out);
                return Some(State::Text { is_first: false });
            }
            _ => break,
        }
    }
    if !call.has_begun() {
        input.pass(call.head, Kind::Text, out);
    }
    Some(State::Text { is_first: false })
}

fn is_known(options: &Options, call: &JsonCall) -> bool {
    let mut functions = options.functions.iter();
    functions.any(|function| function.name == call.name())
}

pub(super) fn arguments(
    values: &mut Values,
    input: &mut Input<'_>,
    out: Sink<'_>,
) -> Option<State> {
    let (len, is_complete) = values.feed(input.rest);
    input.pass(len, Kind::Arguments, out);
    is_complete.then_some(State::Text { is_first: false })
}

pub(super) fn after_call(frame: Frame, input: &mut Input<'_>, out: Sink<'_>) -> Option<State> {
    let white = input.white_len();
    let has_next = |input: &Input<'_>, mark: &str| -> Option<Option<usize>> {
        if !input.begins(white, mark)? {
            return Some(None);
        }
        let after = &input.rest[white + mark.len()..];
        let object = after.trim_start();
        if object.is_empty() && !input.is_end {
            return None;
        }
        let at = input.rest.len() - object.len();
        Some(object.starts_with('{').then_some(at))
    };
    let (next, close) = match frame {
        Frame::ToolCall => (None, "</tool_call>"),
        Frame::List => (has_next(input, ",")?, "]"),
        Frame::Bare => (has_next(input, ";")?, ""),
    };
    if let Some(head) = next {
        return Some(State::Json(JsonCall::new(head, frame)));
    }
    if frame != Frame::Bare && input.begins(white, close)? {
        input.pass(white + close.len(), Kind::Markup, out);
    } else if input.rest.len() == white {
        // Only the end of the answer decides.
        if !input.is_end {
            return None;
        }
        input.pass(white, Kind::Markup, out);
    }
    Some(State::Text { is_first: false })
}
