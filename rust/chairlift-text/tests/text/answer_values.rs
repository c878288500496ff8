//! The values of arguments: their types by the schema, and texts that hold JSON.
use crate::answer::{check, options};
use chairlift_text::answer::{CallFormat, Parser};

#[test]
fn values_have_the_types_of_the_schema() {
    for (name, value, expected) in [
        ("flag", "False", "false"),
        ("flag", "\nTRUE\n", "true"),
        ("flag", "perhaps", "\"perhaps\""),
        ("maybe", "null", "null"),
        ("maybe", "\nNone\n", "null"),
        ("maybe", "nullable", "\"nullable\""),
        ("maybe", "5", "\"5\""),
        ("maybe", "\n a\nb \n", "\" a\\nb \""),
        ("maybe", "", "\"\""),
        ("n", "12345678901234567890123", "12345678901234567890123"),
        ("n", "+3", "3"),
        ("n", "2.0", "2"),
        ("n", "2.5", "2.5"),
        ("n", "null", "null"),
        ("n", "five", "\"five\""),
        ("real", ".5", "0.5"),
        ("real", "1e3", "1e3"),
        ("real", "1.0", "1.0"),
        ("real", "null", "null"),
        ("real", "inf", "\"inf\""),
        ("list", "[1, null]", "[1, null]"),
        ("any", "7", "7"),
        ("any", "seven", "\"seven\""),
        ("any", "[7]", "\"[7]\""),
        ("other", "null", "\"null\""),
    ] {
        let text = format!(
            "<tool_call><function=f><parameter={name}>{value}</parameter></function></tool_call>"
        );
        let call = format!("f({{\"{name}\": {expected}}}");
        check(CallFormat::Qwen3Coder, &text, &[&call]);
    }
}

#[test]
fn a_nullable_text_streams_once_it_is_one() {
    let mut parser = Parser::new(options(CallFormat::Qwen3Coder));
    let mut said = String::new();
    let mut sink = |part: chairlift_text::answer::Part<'_>| said.push_str(part.text);
    parser.push("<tool_call><function=f><parameter=maybe>nu", &mut sink);
    parser.push("mbers, of which there are many", &mut sink);
    assert!(
        said.ends_with("\"numbers, of which there are many"),
        "{said}"
    );
}

#[test]
fn arguments_that_are_a_text_are_not_encoded_twice() {
    let inner = r#"{"a": "\ud83d\ude00 \"q\" \\ \n é"}"#;
    let text = serde_json::to_string(inner).expect("a text has JSON");
    let expected = format!("f({inner}");
    for key in ["arguments", "parameters"] {
        let call = format!("<tool_call>{{\"name\": \"f\", \"{key}\": {text}}}</tool_call>");
        check(CallFormat::Hermes, &call, &[&expected]);
        let early = format!("<tool_call>{{\"{key}\": {text}, \"name\": \"f\"}}</tool_call>");
        check(CallFormat::Hermes, &early, &[&expected]);
        let bare = format!("{{\"name\": \"f\", \"{key}\": {text}}}");
        check(CallFormat::Llama3Json, &bare, &[&expected]);
    }
    // Halves of characters, and escapes that are none.
    let halves =
        r#"<tool_call>{"name": "f", "arguments": "\ud83dx\ud83d\n\ude00\ud83d\ude00"}</tool_call>"#;
    check(
        CallFormat::Hermes,
        halves,
        &["f(\u{fffd}x\u{fffd}\n\u{fffd}\u{1f600}"],
    );
}
