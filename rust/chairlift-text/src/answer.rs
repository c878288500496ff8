//! From the text of an answer to its fields: text, reasoning and function calls.
//!
//! - The parts that a [`Parser`] gives are independent of how the text is cut into pieces, except for where a part is cut.
//! - Nothing is lost: the `raw` texts of all parts, in order, are the text that was pushed. What is no text of a field is
//!   [`Kind::Markup`]: marks, the frame of a call, and white space beside them.
//! - What does not follow the format stays text, its marks included. A call that has begun keeps what it has.
//! - What is held back is the start of a mark, white space before one, and the head of a call, at most
//!   [`MAX_UNDECIDED`] bytes without white space.
//!
//! ```text
//!   "<think>\nSum.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>"
//!    Markup  Reasoning Markup    Call                       Arguments      Markup
//! ```
mod calls;
mod fields;
mod harmony;
mod input;
mod json_call;
mod json_text;
mod tagged_call;
mod typed_value;

use calls::{Frame, after_call, arguments, bare_call, json, mistral_call};
pub use fields::{CallId, Content, Field, Fields};
use harmony::Harmony;
use input::{Input, open_len, undecided_from};
use json_call::{JsonCall, Values};
use std::sync::Arc;
use tagged_call::{Step, TaggedCall};
pub use typed_value::{Parameter, ValueKind};

/// The longest head of a call: what is longer is text.
pub const MAX_UNDECIDED: usize = 4096;

/// How a model writes function calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5.
    Qwen3Coder,
    /// The answer is `{"name": .., "parameters": ..}`, perhaps after `<|python_tag|>`; several are parted by `;`.
    Llama3Json,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}]`, or `[TOOL_CALLS]name[ARGS]{..}` for each call.
    Mistral,
    /// A message to `functions.name`: gpt-oss.
    Harmony,
}

/// How a model marks its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// Between two marks, at the start of the answer.
    Marks {
        open: &'static str,
        close: &'static str,
    },
    /// A message of the channel `analysis`: gpt-oss.
    Harmony,
}

/// What a parser looks for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// None: calls stay text.
    pub calls: Option<CallFormat>,
    /// None: reasoning stays text.
    pub reasoning: Option<ReasoningFormat>,
    /// The prompt ends inside reasoning, whose opening mark it has.
    pub starts_in_reasoning: bool,
    /// Names of the functions; formats without marks take no other call for one.
    pub functions: Vec<Function>,
}

/// A function that may be called.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    /// Those that are not texts alone: formats without JSON write the values of all types alike.
    pub parameters: Vec<Parameter>,
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Reasoning,
    /// The head of a function call; its text is the name.
    Call,
    /// The next piece of the last call's arguments.
    Arguments,
    /// No text of any field.
    Markup,
}

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    pub kind: Kind,
    /// What the field gets.
    pub text: &'a str,
    /// What the model wrote for it.
    pub raw: &'a str,
}

/// Takes parts.
pub type Sink<'s> = &'s mut dyn FnMut(Part<'_>);

/// The fields of one answer while its text grows.
#[derive(Clone, Debug)]
pub struct Parser {
    options: Arc<Options>,
    /// Text that no part has yet.
    held: String,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// White space at most: reasoning may begin.
    Start,
    Reasoning {
        has_text: bool,
    },
    /// After reasoning: white space is markup.
    AfterReasoning,
    Text {
        is_first: bool,
    },
    Json(JsonCall),
    /// The arguments of a call whose name came before.
    Arguments(Values),
    Tagged(TaggedCall),
    /// A call is complete; its frame is not.
    AfterCall(Frame),
    Harmony(Harmony),
}

impl Parser {
    pub fn new(options: Options) -> Self {
        let is_harmony = options.calls == Some(CallFormat::Harmony)
            || options.reasoning == Some(ReasoningFormat::Harmony);
        let state = if is_harmony {
            State::Harmony(Harmony::default())
        } else if options.reasoning.is_some() && options.starts_in_reasoning {
            State::Reasoning { has_text: false }
        } else if options.reasoning.is_some() {
            State::Start
        } else {
            State::Text { is_first: true }
        };
        Self {
            options: Arc::new(options),
            held: String::new(),
            state,
        }
    }

    /// Takes the next piece of the text.
    pub fn push(&mut self, piece: &str, out: Sink<'_>) {
        self.run(piece, false, out);
    }

    /// The answer has ended: gives what is held back.
    pub fn finish(&mut self, out: Sink<'_>) {
        self.run("", true, out);
    }

    fn run(&mut self, piece: &str, is_end: bool, out: Sink<'_>) {
        let mut held = std::mem::take(&mut self.held);
        let rest = if held.is_empty() {
            piece
        } else {
            held.push_str(piece);
            &held
        };
        let mut input = Input { rest, is_end };
        while self.step(&mut input, out) {}
        debug_assert!(!is_end || input.rest.is_empty(), "text is left");
        self.held = input.rest.to_owned();
    }

    /// Decides the next part; false: that needs more text.
    fn step(&mut self, input: &mut Input<'_>, out: Sink<'_>) -> bool {
        let options = Arc::clone(&self.options);
        let next = match &mut self.state {
            State::Start => start(&options, input, out),
            State::Reasoning { has_text } => reasoning(&options, has_text, input, out),
            State::AfterReasoning => after_reasoning(input, out),
            State::Text { is_first } => text(&options, *is_first, input, out),
            State::Json(call) => json(&options, call, input, out),
            State::Arguments(values) => arguments(values, input, out),
            State::Tagged(call) => match call.step(&options, input, out) {
                Step::Wait => None,
                Step::Same => return true,
                Step::Become(state) => Some(state),
            },
            State::AfterCall(frame) => after_call(*frame, input, out),
            State::Harmony(harmony) => return harmony.step(&options, input, out),
        };
        let Some(next) = next else { return false };
        self.state = next;
        true
    }
}

fn marks(options: &Options) -> (&'static str, &'static str) {
    match options.reasoning {
        Some(ReasoningFormat::Marks { open, close }) => (open, close),
        _ => unreachable!("invariant: reasoning between marks has marks"),
    }
}

fn start(options: &Options, input: &mut Input<'_>, out: Sink<'_>) -> Option<State> {
    let (white, open) = (input.white_len(), marks(options).0);
    if !input.begins(white, open)? {
        return Some(State::Text { is_first: true });
    }
    input.pass(white + open.len(), Kind::Markup, out);
    Some(State::Reasoning { has_text: false })
}

/// White space at both ends of the reasoning is markup.
fn reasoning(
    options: &Options,
    has_text: &mut bool,
    input: &mut Input<'_>,
    out: Sink<'_>,
) -> Option<State> {
    let close = marks(options).1;
    if !*has_text {
        input.pass(input.white_len(), Kind::Markup, out);
    }
    let end = input.rest.find(close);
    let decided = end.unwrap_or_else(|| undecided_from(input, close));
    let len = input.rest[..decided].trim_end().len();
    *has_text |= len > 0;
    input.pass(len, Kind::Reasoning, out);
    if end.is_some() {
        input.pass(decided - len + close.len(), Kind::Markup, out);
        return Some(State::AfterReasoning);
    }
    if input.is_end {
        input.pass(decided - len, Kind::Markup, out);
    }
    None
}

fn after_reasoning(input: &mut Input<'_>, out: Sink<'_>) -> Option<State> {
    input.pass(input.white_len(), Kind::Markup, out);
    (!input.rest.is_empty()).then_some(State::Text { is_first: true })
}

/// Plain text, up to a call. White space before a call is markup.
fn text(options: &Options, is_first: bool, input: &mut Input<'_>, out: Sink<'_>) -> Option<State> {
    let mark = match options.calls {
        Some(CallFormat::Hermes | CallFormat::Qwen3Coder) => "<tool_call>",
        Some(CallFormat::Mistral) => "[TOOL_CALLS]",
        Some(CallFormat::Llama3Json) if is_first => return bare_call(input, out),
        Some(CallFormat::Llama3Json | CallFormat::Harmony) | None => {
            input.pass(input.rest.len(), Kind::Text, out);
            return None;
        }
    };
    let Some(found) = input.rest.find(mark) else {
        let mut decided = input.rest.len();
        if !input.is_end {
            decided -= open_len(input.rest, &[mark]);
            decided = input.rest[..decided].trim_end().len();
        }
        input.pass(decided, Kind::Text, out);
        return None;
    };
    let len = input.rest[..found].trim_end().len();
    input.pass(len, Kind::Text, out);
    let head = found - len + mark.len();
    match options.calls {
        Some(CallFormat::Hermes) => Some(State::Json(JsonCall::new(head, Frame::ToolCall))),
        Some(CallFormat::Qwen3Coder) => Some(State::Tagged(TaggedCall::new(head))),
        _ => mistral_call(head, input, out),
    }
}

/// A text inside the quotes of JSON.
fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
