//! What a client writes as a constraint, and the grammar that it stands for.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use crate::error::CompileError;

/// Bytes of a constraint's text at most, choices together.
pub const MAX_BYTES: usize = 256 * 1024;
/// Texts to choose from at most.
pub const MAX_CHOICES: usize = 1024;

/// White space that JSON has between two parts: none, a space, or a new line and so much indentation. Without a bound a
/// model that has nothing to say fills its answer with it.
const WHITESPACE: &str = r"\x20|\r?\n[\x20\x09]{0,32}";
/// The key under which a schema says how its JSON is written.
const OPTIONS: &str = "x-guidance";

/// A constraint as a client writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A value that this JSON schema describes.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// A text that this regular expression matches as a whole.
    Regex(String),
    /// A text of this Lark grammar.
    Lark(String),
    /// One of these texts.
    Choices(Vec<String>),
}

impl Source {
    /// Bytes of its text.
    pub fn num_bytes(&self) -> usize {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Lark(text) => text.len(),
            Self::JsonObject => 0,
            Self::Choices(choices) => choices.iter().map(String::len).sum(),
        }
    }

    /// The grammar.
    ///
    /// # Errors
    /// If it is longer than [`MAX_BYTES`], or no JSON where it should be.
    pub(crate) fn grammar(&self) -> Result<TopLevelGrammar, CompileError> {
        if self.num_bytes() > MAX_BYTES {
            let got = self.num_bytes();
            let message = format!("expected at most {MAX_BYTES} bytes, got {got}");
            return Err(CompileError(message));
        }
        match self {
            Self::JsonSchema(text) => {
                let schema = serde_json::from_str(text)
                    .map_err(|error| CompileError(format!("not JSON: {error}")))?;
                Ok(TopLevelGrammar::from_json_schema(with_options(schema)))
            }
            Self::JsonObject => {
                let schema = with_options(json!({"type": "object"}));
                Ok(TopLevelGrammar::from_json_schema(schema))
            }
            Self::Regex(text) => Ok(TopLevelGrammar::from_regex(text)),
            Self::Lark(text) => Ok(TopLevelGrammar::from_lark(text.clone())),
            Self::Choices(choices) => one_of(choices),
        }
    }
}

/// The schema, with bounded white space unless it says otherwise itself.
fn with_options(schema: Value) -> Value {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => Map::new(),
        other => return other,
    };
    let options = schema.entry(OPTIONS).or_insert_with(|| json!({}));
    if let Value::Object(options) = options
        && !options.contains_key("whitespace_pattern")
        && !options.contains_key("whitespace_flexible")
    {
        options.insert("whitespace_pattern".into(), WHITESPACE.into());
    }
    Value::Object(schema)
}

fn one_of(choices: &[String]) -> Result<TopLevelGrammar, CompileError> {
    if choices.is_empty() || choices.len() > MAX_CHOICES {
        let got = choices.len();
        let message = format!("expected 1 to {MAX_CHOICES} texts, got {got}");
        return Err(CompileError(message));
    }
    if choices.iter().any(String::is_empty) {
        return Err(CompileError("expected no empty text, got one".into()));
    }
    let quoted = choices
        .iter()
        .map(|choice| Value::from(choice.as_str()).to_string());
    let quoted: Vec<_> = quoted.collect();
    let grammar = format!("start: {}", quoted.join(" | "));
    Ok(TopLevelGrammar::from_lark(grammar))
}
