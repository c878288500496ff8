//! Values of parameters that are written without quotes: what a schema says decides what a text is.
use super::escaped;
use serde_json::Value;

/// A type of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    Null,
    Boolean,
    Integer,
    Number,
    Array,
    Object,
    Text,
}

/// A parameter of a function that is not a text alone, and the types that its values may have.
#[derive(Clone, Debug)]
pub struct Parameter {
    pub name: String,
    pub kinds: Vec<ValueKind>,
}

/// What null is called: in JSON, and in Python.
const NULLS: [&str; 2] = ["null", "None"];

impl Parameter {
    fn may_be(&self, kind: ValueKind) -> bool {
        self.kinds.contains(&kind)
    }

    /// Whether a value that begins like this, white space before it left out, can only be a text.
    pub(super) fn is_text_from(&self, start: &str) -> bool {
        let is_nullable = [ValueKind::Null, ValueKind::Text];
        let only = self.kinds.iter().all(|kind| is_nullable.contains(kind));
        let start = start.trim();
        only && self.may_be(ValueKind::Text) && !NULLS.iter().any(|null| null.starts_with(start))
    }

    /// The JSON of a value: of the types that the schema allows the first that the text has; else what is JSON stays as
    /// it is, and anything else is a text.
    pub(super) fn json_of(&self, text: &str) -> String {
        let value = text.trim();
        if self.may_be(ValueKind::Null) && NULLS.contains(&value) {
            return "null".to_owned();
        }
        let word = value.to_ascii_lowercase();
        if self.may_be(ValueKind::Boolean) && matches!(word.as_str(), "true" | "false") {
            return word;
        }
        let is_whole = self.may_be(ValueKind::Integer) && !self.may_be(ValueKind::Number);
        if (is_whole || self.may_be(ValueKind::Number))
            && let Some(number) = number(value, is_whole)
        {
            return number;
        }
        let parsed = serde_json::from_str::<Value>(value);
        let is_typed = match &parsed {
            Ok(Value::Array(_)) => self.may_be(ValueKind::Array),
            Ok(Value::Object(_)) => self.may_be(ValueKind::Object),
            _ => false,
        };
        if is_typed || (parsed.is_ok() && !self.may_be(ValueKind::Text)) {
            return value.to_owned();
        }
        // The line breaks at both ends belong to the tags.
        let text = text.strip_prefix('\n').unwrap_or(text);
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = if self.may_be(ValueKind::Text) {
            text
        } else {
            value
        };
        format!("\"{}\"", escaped(text))
    }
}

/// The JSON of a number, also of one that JSON writes in another way: `+1`, `.5`, `1.`, `2.0` where it is whole.
fn number(value: &str, is_whole: bool) -> Option<String> {
    let digits = value.strip_prefix('+').unwrap_or(value);
    let starts = |c: char| c.is_ascii_digit() || c == '-' || c == '.';
    if !digits.starts_with(starts) {
        return None;
    }
    let is_integer = |text: &str| {
        text.bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_digit())
    };
    let is_json = serde_json::from_str::<serde_json::Number>(digits).is_ok();
    if is_json && (!is_whole || is_integer(digits)) {
        // As it is written: no digit is lost.
        return Some(digits.to_owned());
    }
    let number: f64 = digits
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())?;
    if number.fract() == 0.0 && number.abs() < 9e15 {
        return Some(format!("{number:.0}"));
    }
    if is_json {
        return Some(digits.to_owned());
    }
    serde_json::Number::from_f64(number).map(|number| number.to_string())
}
