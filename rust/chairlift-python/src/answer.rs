//! `AnswerParser`: the fields of an answer, for the scheduler and outside of it.
use std::sync::Arc;

use chairlift_text::answer::{
    CallFormat, Fields, Function, Kind, Options, Parameter, Parser, Part, ReasoningFormat,
    ValueKind,
};
use pyo3::{exceptions::PyValueError, prelude::*};

/// A name, and the parameters that are not texts alone, each with the types of its values.
type NamedFunction = (String, Vec<(String, Vec<String>)>);

/// A kind of part, and its text.
type Field = (&'static str, String);

/// Finds reasoning and function calls in the text of an answer.
#[pyclass(module = "chairlift._core")]
pub(crate) struct AnswerParser {
    options: Options,
    id_key: u64,
    parser: Parser,
    kept_tokens: Arc<[i32]>,
}

impl AnswerParser {
    /// A parser for a request, which begins with its answer.
    pub(crate) fn fields(&self) -> Box<Fields> {
        Box::new(Fields::new(self.options.clone(), self.id_key))
    }

    pub(crate) fn kept_tokens(&self) -> Arc<[i32]> {
        Arc::clone(&self.kept_tokens)
    }
}

#[pymethods]
impl AnswerParser {
    #[new]
    #[pyo3(signature = (*, calls = None, reasoning = None, starts_in_reasoning = false,
        functions = vec![], id_key = 0, kept_tokens = vec![]))]
    fn new(
        calls: Option<&str>,
        reasoning: Option<&str>,
        starts_in_reasoning: bool,
        functions: Vec<NamedFunction>,
        id_key: u64,
        kept_tokens: Vec<i32>,
    ) -> PyResult<Self> {
        let functions: PyResult<_> = functions.into_iter().map(function).collect();
        let options = Options {
            calls: calls.map(call_format).transpose()?,
            reasoning: reasoning.map(reasoning_format).transpose()?,
            starts_in_reasoning,
            functions: functions?,
        };
        Ok(Self {
            parser: Parser::new(options.clone()),
            options,
            id_key,
            kept_tokens: kept_tokens.into(),
        })
    }

    fn push(&mut self, piece: &str) -> Vec<Field> {
        collect(|sink| self.parser.push(piece, sink))
    }

    fn finish(&mut self) -> Vec<Field> {
        collect(|sink| self.parser.finish(sink))
    }
}

/// The parts that have text.
fn collect(run: impl FnOnce(&mut dyn FnMut(Part<'_>))) -> Vec<Field> {
    let mut fields = Vec::new();
    run(&mut |part| {
        let kind = match part.kind {
            Kind::Text => "text",
            Kind::Reasoning => "reasoning",
            Kind::Call => "call",
            Kind::Arguments => "arguments",
            Kind::Markup => return,
        };
        fields.push((kind, part.text.to_owned()));
    });
    fields
}

fn function((name, parameters): NamedFunction) -> PyResult<Function> {
    let parameter = |(name, kinds): (String, Vec<String>)| {
        let kinds: PyResult<_> = kinds.iter().map(|kind| value_kind(kind)).collect();
        kinds.map(|kinds| Parameter { name, kinds })
    };
    let parameters: PyResult<_> = parameters.into_iter().map(parameter).collect();
    parameters.map(|parameters| Function { name, parameters })
}

fn value_kind(name: &str) -> PyResult<ValueKind> {
    Ok(match name {
        "null" => ValueKind::Null,
        "boolean" => ValueKind::Boolean,
        "integer" => ValueKind::Integer,
        "number" => ValueKind::Number,
        "array" => ValueKind::Array,
        "object" => ValueKind::Object,
        "string" => ValueKind::Text,
        _ => {
            return Err(PyValueError::new_err(format!(
                "functions: unknown type {name:?}"
            )));
        }
    })
}

fn call_format(name: &str) -> PyResult<CallFormat> {
    Ok(match name {
        "hermes" => CallFormat::Hermes,
        "qwen3-coder" => CallFormat::Qwen3Coder,
        "llama3-json" => CallFormat::Llama3Json,
        "mistral" => CallFormat::Mistral,
        "harmony" => CallFormat::Harmony,
        _ => return Err(PyValueError::new_err(format!("calls: unknown {name:?}"))),
    })
}

fn reasoning_format(name: &str) -> PyResult<ReasoningFormat> {
    let (open, close) = match name {
        "harmony" => return Ok(ReasoningFormat::Harmony),
        "think" => ("<think>", "</think>"),
        "mistral" => ("[THINK]", "[/THINK]"),
        "seed" => ("<seed:think>", "</seed:think>"),
        _ => {
            return Err(PyValueError::new_err(format!(
                "reasoning: unknown {name:?}"
            )));
        }
    };
    Ok(ReasoningFormat::Marks { open, close })
}
