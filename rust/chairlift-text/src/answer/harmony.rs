//! Messages of gpt-oss: `<|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..`.
//!
//! The prompt ends with `<|start|>assistant`. The head of a message has its channel and, for a call, its recipient:
//! ` to=functions.name`, before or after the channel.
use super::{CallFormat, Input, Kind, Options, Part, Sink, open_len};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// What ends a message; the next one's mark does so too.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];
const MAX_HEAD: usize = 512;

/// Where the answer is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Harmony {
    /// Before the head of a message. Only the first may be without [`START`].
    #[default]
    First,
    Next,
    Body {
        kind: Kind,
        has_text: bool,
    },
    /// No message: the rest is text.
    Text,
}

impl Harmony {
    /// Decides the next part; false: that needs more text.
    pub(super) fn step(&mut self, options: &Options, input: &mut Input<'_>, out: Sink<'_>) -> bool {
        match *self {
            Self::First | Self::Next => self.head(options, input, out),
            Self::Body { kind, has_text } => self.body(kind, has_text, input, out),
            Self::Text => {
                input.pass(input.rest.len(), Kind::Text, out);
                false
            }
        }
    }

    fn head(&mut self, options: &Options, input: &mut Input<'_>, out: Sink<'_>) -> bool {
        let white = input.white_len();
        let marks: &[&str] = match self {
            Self::First => &[START, CHANNEL, MESSAGE, "to="],
            _ => &[START, CHANNEL],
        };
        let mut is_open = input.rest.len() == white && !input.is_end;
        let is_head = marks.iter().any(|mark| {
            let begins = input.begins(white, mark);
            is_open |= begins.is_none();
            begins == Some(true)
        });
        if is_open && !is_head {
            return false;
        }
        let end = is_head.then(|| input.rest.find(MESSAGE)).flatten();
        let Some(end) = end.filter(|end| *end <= MAX_HEAD) else {
            if is_head && !input.is_end && input.rest.len() <= MAX_HEAD {
                return false;
            }
            // At the end a head without a message says nothing.
            let is_cut = input.is_end && (is_head || input.rest.len() == white);
            let kind = if is_cut { Kind::Markup } else { Kind::Text };
            input.pass(if is_cut { input.rest.len() } else { white }, kind, out);
            *self = Self::Text;
            return true;
        };
        let raw = input.take(end + MESSAGE.len());
        let (kind, name) = addressed(options, &raw[..end]);
        if kind == Kind::Call {
            out(Part {
                kind,
                text: name,
                raw,
            });
        } else {
            out(Part {
                kind: Kind::Markup,
                text: "",
                raw,
            });
        }
        let kind = if kind == Kind::Call {
            Kind::Arguments
        } else {
            kind
        };
        *self = Self::Body {
            kind,
            has_text: false,
        };
        true
    }

    fn body(&mut self, kind: Kind, has_text: bool, input: &mut Input<'_>, out: Sink<'_>) -> bool {
        let ends = ENDS
            .iter()
            .filter_map(|mark| Some((input.rest.find(mark)?, mark)));
        let found = ends.min_by_key(|(at, _)| *at);
        let len = match found {
            Some((at, _)) => at,
            None if input.is_end => input.rest.len(),
            None => input.rest.len() - open_len(input.rest, &ENDS),
        };
        input.pass(len, kind, out);
        let has_text = has_text || len > 0;
        *self = Self::Body { kind, has_text };
        let Some((_, &mark)) = found else {
            return false;
        };
        if kind == Kind::Arguments && !has_text {
            out(Part {
                kind,
                text: "{}",
                raw: "",
            });
        }
        if mark != START && mark != CHANNEL {
            input.pass(mark.len(), Kind::Markup, out);
        }
        *self = Self::Next;
        true
    }
}

/// What the messages under a head are, and the name of the function that is called.
fn addressed<'h>(options: &Options, head: &'h str) -> (Kind, &'h str) {
    let word_end = |c: char| c.is_whitespace() || c == '<';
    let word = |after: &str| {
        let rest = head.split_once(after)?.1.trim_start();
        Some(&rest[..rest.find(word_end).unwrap_or(rest.len())])
    };
    let recipient = word("to=").filter(|name| *name != "assistant");
    let calls = options.calls == Some(CallFormat::Harmony);
    match (
        recipient.and_then(|name| name.strip_prefix("functions.")),
        word(CHANNEL),
    ) {
        (Some(name), _) if calls && !name.is_empty() => (Kind::Call, name),
        (_, Some("analysis")) if options.reasoning.is_some() => (Kind::Reasoning, ""),
        // Of the model's own tools: what it says to them is no answer.
        (_, Some("commentary")) if recipient.is_some() && options.reasoning.is_some() => {
            (Kind::Reasoning, "")
        }
        _ => (Kind::Text, ""),
    }
}
