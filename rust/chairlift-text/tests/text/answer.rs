//! Fields of answers as models write them, and of texts that only look like it.
use chairlift_text::answer::{
    CallFormat, Function, Kind, MAX_UNDECIDED, Options, Parameter, Parser, ReasoningFormat,
    ValueKind,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const THINK: ReasoningFormat = ReasoningFormat::Marks {
    open: "<think>",
    close: "</think>",
};
const FORMATS: [CallFormat; 5] = [
    CallFormat::Hermes,
    CallFormat::Qwen3Coder,
    CallFormat::Llama3Json,
    CallFormat::Mistral,
    CallFormat::Harmony,
];

pub(crate) fn options(calls: CallFormat) -> Options {
    let reasoning = match calls {
        CallFormat::Harmony => ReasoningFormat::Harmony,
        _ => THINK,
    };
    let parameter = |name: &str, kinds: &[ValueKind]| Parameter {
        name: name.to_owned(),
        kinds: kinds.to_vec(),
    };
    let parameters = vec![
        parameter("n", &[ValueKind::Integer]),
        parameter("flag", &[ValueKind::Boolean]),
        parameter("maybe", &[ValueKind::Null, ValueKind::Text]),
        parameter("real", &[ValueKind::Number, ValueKind::Null]),
        parameter("list", &[ValueKind::Array]),
        parameter("any", &[ValueKind::Integer, ValueKind::Text]),
    ];
    Options {
        calls: Some(calls),
        reasoning: Some(reasoning),
        starts_in_reasoning: false,
        functions: vec![Function {
            name: "f".to_owned(),
            parameters,
        }],
    }
}

/// The fields of an answer, adjacent parts of a field joined, and what they were made from.
fn parse<'a>(
    options: Options,
    pieces: impl IntoIterator<Item = &'a str>,
) -> (Vec<(Kind, String)>, String) {
    let mut parser = Parser::new(options);
    let (mut fields, mut raw) = (Vec::<(Kind, String)>::new(), String::new());
    let mut sink = |part: chairlift_text::answer::Part<'_>| {
        raw.push_str(part.raw);
        match fields.last_mut() {
            _ if part.kind == Kind::Markup || part.text.is_empty() => {}
            Some((kind, text)) if *kind == part.kind && *kind != Kind::Call => {
                text.push_str(part.text);
            }
            _ => fields.push((part.kind, part.text.to_owned())),
        }
    };
    for piece in pieces {
        parser.push(piece, &mut sink);
    }
    parser.finish(&mut sink);
    (fields, raw)
}

/// As [`parse`], in words: `text:..`, `think:..`, `f(arguments)`.
fn fields(options: Options, text: &str) -> Vec<String> {
    let mut shown = Vec::<String>::new();
    for (kind, text) in parse(options, [text]).0 {
        match kind {
            Kind::Text => shown.push(format!("text:{text}")),
            Kind::Reasoning => shown.push(format!("think:{text}")),
            Kind::Call => shown.push(format!("{text}(")),
            Kind::Arguments => shown.last_mut().expect("a call has begun").push_str(&text),
            Kind::Markup => unreachable!(),
        }
    }
    shown
}

#[track_caller]
pub(crate) fn check(calls: CallFormat, text: &str, expected: &[&str]) {
    assert_eq!(fields(options(calls), text), expected, "{text}");
}

#[test]
fn hermes_calls_follow_reasoning_and_text() {
    let text = "<think>\nTwo and two.\n</think>\n\nI add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": \
        {\"a\": {\"b\": \"}\\\"\"}}}\n</tool_call>\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>";
    let call = r#"add({"a": {"b": "}\""}}"#;
    check(
        CallFormat::Hermes,
        text,
        &["think:Two and two.", "text:I add.", call, "f({}"],
    );
    // Only the start of an answer is reasoning, and a prompt may have opened it.
    check(
        CallFormat::Hermes,
        "Say <think>no</think>",
        &["text:Say <think>no</think>"],
    );
    let opened = Options {
        starts_in_reasoning: true,
        ..options(CallFormat::Hermes)
    };
    assert_eq!(
        fields(opened, "\nHm.\n</think>\n\nYes"),
        ["think:Hm.", "text:Yes"]
    );
    let early = r#"<tool_call>{"arguments": [1, 2], "id": "x", "name": "g"}</tool_call>"#;
    check(CallFormat::Hermes, early, &["g([1, 2]"]);
}

#[test]
fn malformed_hermes_calls_stay_text() {
    for text in [
        "<tool_call>",
        "<tool_call> not json</tool_call>",
        "<tool_call>\n{\"name\": 3, \"arguments\": {}}\n</tool_call>",
        "<tool_call>{\"nom\": \"f\"}</tool_call>",
        "<tool_call>{\"name\": \"f\"",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "a </tool_call> b <tool_cal",
    ] {
        check(CallFormat::Hermes, text, &[&format!("text:{text}")]);
    }
    let again = "<tool_call>{<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    check(CallFormat::Hermes, again, &["text:<tool_call>{", "f({}"]);
    // A call that has begun keeps what it has.
    let cut = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, ";
    check(CallFormat::Hermes, cut, &["f({\"a\": [1, "]);
    let more = "<tool_call>{\"name\": \"f\", \"arguments\": {}}} </tool_call>!";
    check(CallFormat::Hermes, more, &["f({}", "text:} </tool_call>!"]);
}

#[test]
fn qwen3_coder_calls_become_json() {
    let text = "Now.\n<tool_call>\n<function=f>\n<parameter=path>\na \"b\"\nc\n</parameter>\n<parameter=n>\n[1, 2]\n\
        </parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>";
    let call = r#"f({"path": "a \"b\"\nc", "n": [1, 2]}"#;
    check(CallFormat::Qwen3Coder, text, &["text:Now.", call, "g({}"]);
    // What is no JSON is a string, and a call without its closing tags is complete.
    let python = "<tool_call><function=f><parameter=n>True</parameter></tool_call>";
    check(CallFormat::Qwen3Coder, python, &[r#"f({"n": "True"}"#]);
    for text in [
        "<tool_call><fun",
        "<tool_call><function=>",
        "<tool_call>{}</tool_call>",
    ] {
        check(CallFormat::Qwen3Coder, text, &[&format!("text:{text}")]);
    }
}

#[test]
fn llama_calls_are_the_whole_answer_and_known_functions() {
    let call = r#"{"name": "f", "parameters": {"x": 1}}"#;
    let expected = r#"f({"x": 1}"#;
    check(CallFormat::Llama3Json, call, &[expected]);
    check(
        CallFormat::Llama3Json,
        &format!("<|python_tag|>{call}"),
        &[expected],
    );
    check(
        CallFormat::Llama3Json,
        &format!("{call}; {call}"),
        &[expected, expected],
    );
    for text in [
        r#"{"name": "unknown", "parameters": {"x": 1}}"#,
        r#"{"title": "f"}"#,
        "<|python_tag|>print(1)",
        r#"Call {"name": "f", "parameters": {}}"#,
    ] {
        check(CallFormat::Llama3Json, text, &[&format!("text:{text}")]);
    }
}

#[test]
fn mistral_calls_are_a_list_or_a_name() {
    let list = r#"[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "abc"}, {"name": "g", "arguments": {}}]"#;
    check(CallFormat::Mistral, list, &[r#"f({"x": 1}"#, "g({}"]);
    let named = r#"I look.[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[CALL_ID]a1[ARGS]{}"#;
    check(
        CallFormat::Mistral,
        named,
        &["text:I look.", r#"f({"x": 1}"#, "g({}"],
    );
    for text in [
        "[TOOL_CALLS]f of x",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]f[ARGS]1",
    ] {
        check(CallFormat::Mistral, text, &[&format!("text:{text}")]);
    }
}

#[test]
fn harmony_messages_go_to_their_fields() {
    let text = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>\
        <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>";
    check(
        CallFormat::Harmony,
        text,
        &["think:I look.", "text:Wait.", r#"f({"x": 1}"#],
    );
    let before = " to=functions.g<|channel|>commentary json<|message|>{}";
    check(CallFormat::Harmony, before, &["g({}"]);
    let answer = "<|channel|>analysis<|message|><|end|><|start|>assistant<|channel|>final<|message|>Hi < <| there";
    check(CallFormat::Harmony, answer, &["text:Hi < <| there"]);
    check(
        CallFormat::Harmony,
        "Just text <|message|>",
        &["text:Just text <|message|>"],
    );
}

#[test]
fn formats_that_are_off_leave_the_text_alone() {
    let text = "<think>a</think><tool_call>{\"name\": \"f\"}</tool_call>[TOOL_CALLS]f[ARGS]{}";
    assert_eq!(fields(Options::default(), text), [format!("text:{text}")]);
    let calls = Options {
        calls: None,
        ..options(CallFormat::Hermes)
    };
    let rest = text
        .strip_prefix("<think>a</think>")
        .expect("reasoning comes first");
    assert_eq!(
        fields(calls, text),
        ["think:a".to_owned(), format!("text:{rest}")]
    );
}

#[test]
fn a_head_that_never_ends_is_held_for_a_bounded_time() {
    let mut parser = Parser::new(options(CallFormat::Hermes));
    let mut taken = 0;
    let mut given = 0;
    let mut push = |piece: &str| {
        taken += piece.len();
        parser.push(piece, &mut |part| given += part.raw.len());
        assert!(taken - given <= MAX_UNDECIDED + piece.len() + 16);
    };
    push("<tool_call>{\"arguments\": [");
    for _ in 0..MAX_UNDECIDED {
        push("[1], ");
    }
}

fn fragments() -> Vec<&'static str> {
    let mut fragments = vec![
        "<think>",
        "</think>",
        "\n",
        " ",
        "\u{e9}",
        "<",
        "x",
        "\"",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        ";",
        "\\",
        "<tool_call>",
        "</tool_call>",
        "{\"name\": \"f\", \"arguments\": ",
        "{\"name\": \"f\"",
        "\"name\": \"f\"",
        "{\"a\": [1, \"\\\"}\"]}",
        "{}",
        "<function=f>",
        "<parameter=n>",
        "<parameter=s>",
        "<parameter=maybe>",
        "<parameter=any>",
        "<parameter=flag>",
        "null",
        "True",
        "7",
        "\"arguments\": \"",
        "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}",
        "\\u",
        "d83d",
        "de00",
        "\\n",
        "</parameter>",
        "</function>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "f",
        "\"arguments\": ",
    ];
    fragments.extend([
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "assistant",
        "analysis",
        "final",
        "commentary",
        " to=functions.f",
        "<|channel|>analysis<|message|>",
        "<|start|>assistant",
    ]);
    fragments
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn nothing_is_lost_and_pieces_do_not_matter(
        format in select(&FORMATS[..]),
        starts_in_reasoning in any::<bool>(),
        fragments in vec(select(fragments()), 0..24),
        cuts in vec(1..9_usize, 1..6),
    ) {
        let text = fragments.concat();
        let mut pieces = Vec::new();
        let mut rest = text.as_str();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let at = (*cut..=rest.len()).find(|&at| rest.is_char_boundary(at));
            let (piece, tail) = rest.split_at(at.unwrap_or(rest.len()));
            pieces.push(piece);
            rest = tail;
        }
        let options = Options { starts_in_reasoning, ..options(format) };
        let whole = parse(options.clone(), [text.as_str()]);
        prop_assert_eq!(&whole.1, &text);
        prop_assert_eq!(parse(options, pieces), whole);
    }
}
