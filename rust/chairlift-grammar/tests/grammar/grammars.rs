//! What constraints allow, and what is no constraint.

use std::sync::Arc;

use crate::world::{
    END, Random, allowed, compile, compiler, mask, mask_behind, schema, text, tokens, walk,
};
use chairlift_grammar::{
    CompileError, Matcher, Source, Vocabulary, matcher::Outcome, source, vocabulary::NoEnd,
};
use serde_json::Value;

const PERSON: &str = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
    "age": {"type": "integer", "minimum": 0, "maximum": 150}, "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "b"]}}},
    "required": ["name", "age"], "additionalProperties": false}"#;

#[test]
fn answers_to_a_schema_are_what_it_describes() {
    let grammar = schema(PERSON);
    let mut num_ended = 0;
    for seed in 0..200 {
        let Some(output) = walk(&grammar, &mut Random(seed), 400) else {
            continue;
        };
        num_ended += 1;
        let value: Value = serde_json::from_str(&text(&output)).expect("JSON");
        assert!(value["name"].as_str().expect("a name").chars().count() <= 8);
        assert!(value["age"].as_u64().expect("an age") <= 150);
        let known = ["name", "age", "tags"];
        assert!(
            value
                .as_object()
                .expect("an object")
                .keys()
                .all(|key| known.contains(&key.as_str()))
        );
    }
    assert!(num_ended > 190, "{num_ended}");
}

#[test]
fn an_end_is_allowed_where_the_grammar_may_end_and_nowhere_else() {
    let grammar = compile(&Source::Regex("ab*".into()));
    let ids = |text: &str| {
        text.bytes()
            .map(|byte| crate::world::FIRST_BYTE + i32::from(byte))
            .collect::<Vec<_>>()
    };
    assert!(!allowed(&mask_behind(&grammar, &[])).contains(&END));
    assert!(allowed(&mask_behind(&grammar, &ids("a"))).contains(&END));
    assert!(allowed(&mask_behind(&grammar, &ids("abb"))).contains(&END));
    let complete = compile(&Source::Regex("ab".into()));
    assert_eq!(allowed(&mask_behind(&complete, &ids("ab"))), [END]);
}

#[test]
fn an_end_that_is_not_wanted_is_allowed_only_where_nothing_else_is() {
    let grammar = compile(&Source::Regex("ab?".into()));
    let mut matcher = Matcher::new(grammar, 0, false);
    matcher.follow(&[crate::world::FIRST_BYTE + 97]);
    assert_eq!(
        allowed(&mask(&mut matcher)),
        [crate::world::FIRST_BYTE + 98]
    );
    matcher.follow(&[crate::world::FIRST_BYTE + 98]);
    assert_eq!(allowed(&mask(&mut matcher)), [END]);
}

#[test]
fn choices_are_taken_as_they_are_written() {
    let choices = [
        "yes",
        "no",
        "a \"quoted\" \\ text/",
        "日本",
        "new\nline",
        "(.*)",
    ]
    .map(String::from);
    let grammar = compile(&Source::Choices(choices.to_vec()));
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let output = walk(&grammar, &mut Random(seed), 100).expect("an end");
        let text = text(&output);
        assert!(choices.contains(&text), "{text:?}");
        seen.insert(text);
    }
    assert_eq!(seen.len(), choices.len());
}

#[test]
fn any_json_object_is_an_object() {
    let grammar = compile(&Source::JsonObject);
    let ended = (0..200).filter_map(|seed| walk(&grammar, &mut Random(seed), 60));
    let mut num_objects = 0;
    for output in ended {
        match serde_json::from_str::<Value>(&text(&output)) {
            Ok(value) => assert!(value.is_object()),
            // It is JSON all the same.
            Err(error) => assert!(error.to_string().contains("out of range"), "{error}"),
        }
        num_objects += 1;
    }
    assert!(num_objects > 10, "{num_objects}");
}

#[test]
fn a_lark_grammar_may_hold_json_and_special_tokens() {
    let grammar = compile(&Source::Lark(
        "start: <|tool|> \"f(\" arguments \")\"\narguments: %json {\"type\": \"boolean\"}".into(),
    ));
    let output = walk(&grammar, &mut Random(1), 100).expect("an end");
    assert_eq!(output[0], 1);
    assert!(
        ["f(true)", "f(false)"].contains(&text(&output).trim()),
        "{}",
        text(&output)
    );
}

#[test]
fn white_space_in_json_is_bounded() {
    let grammar = schema(r#"{"type": "array", "maxItems": 2, "items": {"type": "null"}}"#);
    let space = crate::world::FIRST_BYTE + 32;
    let open = crate::world::FIRST_BYTE + i32::from(b'[');
    assert!(allowed(&mask_behind(&grammar, &[open])).contains(&space));
    assert!(!allowed(&mask_behind(&grammar, &[open, space])).contains(&space));
}

#[test]
fn what_is_no_grammar_is_refused_with_the_parsers_message() {
    let refused = |source: Source| compiler().compile(&source).err().expect("an error").0;
    assert!(refused(Source::JsonSchema("{".into())).starts_with("not JSON: "));
    let message = refused(Source::JsonSchema(r#"{"type": "strange"}"#.into()));
    assert!(message.contains("strange"), "{message}");
    assert!(
        refused(Source::JsonSchema("3".into())).contains("schema"),
        "{}",
        refused(Source::JsonSchema("3".into()))
    );
    let message = refused(Source::JsonSchema("false".into()));
    assert!(
        message.to_lowercase().contains("unsatisfiable") || message.contains("false"),
        "{message}"
    );
    let message = refused(Source::Regex("a(".into()));
    assert!(message.contains("unclosed group"), "{message}");
    let message = refused(Source::Lark("start: missing".into()));
    assert!(message.contains("missing"), "{message}");
    let message = refused(Source::Lark(
        "start: head\nhead[stop=\"12\"]: /[a-z]+/".into(),
    ));
    assert!(message.contains("stop=..."), "{message}");
    assert_eq!(
        refused(Source::Choices(vec![])),
        "expected 1 to 1024 texts, got 0"
    );
    assert_eq!(
        refused(Source::Choices(vec![String::new()])),
        "expected no empty text, got one"
    );
    let long = "a".repeat(source::MAX_BYTES + 1);
    assert_eq!(
        refused(Source::Regex(long)),
        "expected at most 262144 bytes, got 262145"
    );
    for message in [Source::Regex("a(".into()), Source::Lark("start: @".into())].map(refused) {
        assert!(
            !message.contains("backtrace") && message.chars().count() <= 503,
            "{message}"
        );
    }
}

#[test]
fn large_and_deep_sources_are_refused_or_compiled_and_end() {
    let deep_lark = format!("start: {}\"a\"{}", "(".repeat(50_000), ")".repeat(50_000));
    let deep_regex = format!("{}a{}", "(".repeat(50_000), ")".repeat(50_000));
    let deep_json = format!("{}{}", r#"{"items":"#.repeat(10_000), "}".repeat(10_000));
    let deep_array = "[".repeat(100_000);
    let wide: Vec<_> = (0..3000)
        .map(|i| format!(r#""p{i}": {{"type": "string"}}"#))
        .collect();
    let wide = format!(
        r#"{{"type": "object", "properties": {{{}}}}}"#,
        wide.join(",")
    );
    let doubling: Vec<_> = (0..40)
        .map(|i| format!("r{i}: r{} r{}", i + 1, i + 1))
        .collect();
    let doubling = format!("start: r0\n{}\nr40: \"a\"", doubling.join("\n"));
    let product = r#"{"anyOf": [{"type": "string"}, {"type": "integer"}]}"#;
    let all_of = format!(r#"{{"allOf": [{}]}}"#, vec![product; 24].join(","));
    for (name, source) in [
        ("deep lark", Source::Lark(deep_lark)),
        ("deep regex", Source::Regex(deep_regex)),
        ("deep json", Source::JsonSchema(deep_json)),
        ("deep array", Source::JsonSchema(deep_array)),
        ("wide", Source::JsonSchema(wide)),
        ("doubling", Source::Lark(doubling)),
        ("products", Source::JsonSchema(all_of)),
        (
            "counted",
            Source::Regex("((a{1,1000}){1,1000}){1,1000}".into()),
        ),
        ("backtracking", Source::Regex("(x+x+)+y".into())),
        ("and", Source::Regex("(.*a.{30}){5}".into())),
        ("self", Source::JsonSchema(r##"{"$ref": "#"}"##.into())),
        (
            "many items",
            Source::JsonSchema(r#"{"type": "array", "minItems": 1000000}"#.into()),
        ),
        (
            "long string",
            Source::JsonSchema(r#"{"type": "string", "minLength": 10000000}"#.into()),
        ),
    ] {
        let mask = compiler().compile(&source).map(|grammar| {
            let mut mask = vec![0; crate::world::num_words()];
            let mut matcher = Matcher::new(Arc::new(grammar), 0, true);
            matcher.mask(&mut mask)
        });
        // Whichever it is: it has ended, and nothing panicked.
        if let Err(CompileError(message)) = mask {
            assert!(!message.contains("panic"), "{name}: {message}");
        }
    }
}

#[test]
fn a_grammar_that_takes_too_long_at_a_token_ends_its_sequence() {
    let alternatives = |n: usize| vec!["\"a\""; n].join(" | ");
    let late = format!("start: \"b\" x\nx: {}", alternatives(20_000));
    for (name, source, text) in [
        ("at once", format!("start: {}", alternatives(40_000)), ""),
        ("behind a text", late, "b"),
        // Each token has as many ways as there are pairs of those before it.
        (
            "ambiguous",
            "start: s\ns: s s | \"a\" |".into(),
            &*"a".repeat(900),
        ),
    ] {
        let grammar = compiler().compile(&Source::Lark(source)).expect(name);
        let mut matcher = Matcher::new(Arc::new(grammar), 0, true);
        let mut mask = vec![0; crate::world::num_words()];
        let mut outcome = matcher.mask(&mut mask);
        for byte in text.bytes() {
            matcher.follow(&[crate::world::FIRST_BYTE + i32::from(byte)]);
            outcome = matcher.mask(&mut mask);
        }
        assert_eq!(outcome, Outcome::TooComplex, "{name}");
    }
}

#[test]
fn a_vocabulary_without_an_end_is_refused() {
    assert_eq!(
        Vocabulary::new(&tokens(), |_| false, &[]).err(),
        Some(NoEnd)
    );
    assert_eq!(
        Vocabulary::new(&tokens(), |_| false, &[100_000]).err(),
        Some(NoEnd)
    );
}

/// Constraints as deep as one may be: rules in a row, groups in each other, references in a row.
fn deep() -> Vec<Source> {
    let chain = |rule: fn(usize) -> String| {
        let rules: Vec<_> = (0..4000).map(rule).collect();
        Source::Lark(format!(
            "start: r0\n{}\nr4000: \"b\"\nT4000: \"b\"\n",
            rules.join("\n")
        ))
    };
    let defs: Vec<_> = (0..2000)
        .map(|i| {
            format!(
                r##""{i}": {{"type": "array", "items": {{"$ref": "#/$defs/{}"}}}}"##,
                i + 1
            )
        })
        .collect();
    let levels = format!("{}{{}}{}", r#"{"items":"#.repeat(100), "}".repeat(100));
    vec![
        chain(|i| format!("r{i}: \"a\" r{}", i + 1)),
        chain(|i| format!("r{i}: r{} \"a\"?", i + 1)),
        Source::Regex(format!("{}a+{}", "(a?".repeat(80), ")*".repeat(80))),
        Source::Regex("((a|b)*c(.){1000})*z".into()),
        Source::JsonSchema(levels),
        Source::JsonSchema(format!(
            r##"{{"$ref": "#/$defs/0", "$defs": {{{}, "2000": {{}}}}}}"##,
            defs.join(",")
        )),
    ]
}

#[test]
fn a_deep_grammar_is_followed_on_a_small_stack() {
    for source in deep() {
        let grammar = compile(&source);
        let follow = move || {
            for seed in 0..3 {
                let mut matcher = Matcher::new(Arc::clone(&grammar), 0, true);
                let mut random = Random(seed);
                for _ in 0..150 {
                    let mut bits = vec![0; crate::world::num_words()];
                    // A place may be too complex; the stack is what counts.
                    if matcher.mask(&mut bits) != chairlift_grammar::matcher::Outcome::Mask {
                        break;
                    }
                    let allowed = allowed(&bits);
                    let token = allowed[random.below(allowed.len())];
                    if token == END {
                        break;
                    }
                    matcher.follow(&[token]);
                    matcher.forced(8);
                }
            }
            drop(grammar);
        };
        let thread = std::thread::Builder::new().stack_size(512 << 10);
        let followed = thread.spawn(follow).expect("a thread").join();
        followed.expect("no panic");
    }
}

#[test]
fn the_words_of_a_panic_are_not_for_clients() {
    let product = r#"{"allOf": [{"type": "integer", "multipleOf": 65537}, {"multipleOf": 65539}]}"#;
    let range = r#"{"type": "integer", "minimum": -9223372036854775808, "maximum": 3}"#;
    for text in [product, range] {
        let refused = compiler().compile(&Source::JsonSchema(text.into()));
        let CompileError(message) = refused.err().expect("a refusal");
        assert!(message.contains("does not support"), "{message}");
        assert!(!message.contains("panic") && !message.contains("overflow"));
    }
}
