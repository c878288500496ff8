//! `TokenTable` and `TextStream`: text outside the scheduler, and what the scheduler decodes with.
use chairlift_text::{TextOptions, TextState};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// What each token id contributes to text.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct TokenTable {
    pub(crate) inner: Arc<chairlift_text::TokenTable>,
}

#[pymethods]
impl TokenTable {
    #[new]
    #[pyo3(
        signature = (tokens, special, *, byte_fallback = vec![], strip_first_space = false,
            first_tokens = vec![]),
        text_signature = "(tokens, special, *, byte_fallback=(), strip_first_space=False, \
            first_tokens=())"
    )]
    fn new(
        tokens: Vec<Vec<u8>>,
        special: Vec<u32>,
        byte_fallback: Vec<u32>,
        strip_first_space: bool,
        first_tokens: Vec<Vec<u8>>,
    ) -> PyResult<Self> {
        let vocab_size = tokens.len();
        check_ids("special", &special, vocab_size)?;
        check_ids("byte_fallback", &byte_fallback, vocab_size)?;
        if let Some(id) = byte_fallback
            .iter()
            .find(|&&id| tokens[id as usize].len() != 1)
        {
            let len = tokens[*id as usize].len();
            return Err(PyValueError::new_err(format!(
                "byte_fallback: id {id} must have one byte, got {len}"
            )));
        }
        if !first_tokens.is_empty() && first_tokens.len() != vocab_size {
            return Err(PyValueError::new_err(format!(
                "first_tokens must have {vocab_size} entries like tokens, got {}",
                first_tokens.len()
            )));
        }
        let mut table =
            chairlift_text::TokenTable::new(&tokens, &special, &byte_fallback, strip_first_space);
        if !first_tokens.is_empty() {
            table = table.with_first_tokens(&first_tokens);
        }
        Ok(Self {
            inner: Arc::new(table),
        })
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn outline<'py>(
        &self,
        py: Python<'py>,
        ids: Vec<i32>,
    ) -> Vec<(i32, Bound<'py, PyBytes>, bool)> {
        let table = &self.inner;
        (0..table.vocab_size() as i32)
            .map(|id| (id, table.bytes(id), table.is_special(id)))
            .filter(|(id, bytes, special)| *special || bytes.len() == 1 || ids.contains(id))
            .map(|(id, bytes, special)| (id, PyBytes::new(py, bytes), special))
            .collect()
    }
}

fn check_ids(name: &str, ids: &[u32], vocab_size: usize) -> PyResult<()> {
    match ids.iter().find(|&&id| id as usize >= vocab_size) {
        None => Ok(()),
        Some(id) => Err(PyValueError::new_err(format!(
            "{name}: id {id} is outside the vocabulary of {vocab_size}"
        ))),
    }
}

/// The text of one token sequence while it grows.
#[pyclass(module = "chairlift._core")]
pub(crate) struct TextStream {
    table: Arc<chairlift_text::TokenTable>,
    state: TextState,
    stopped: Option<usize>,
}

#[pymethods]
impl TextStream {
    #[new]
    #[pyo3(
        signature = (table, *, skip_special_tokens = true, stop = vec![], stop_regex = None,
            include_stop = false),
        text_signature = "(table, *, skip_special_tokens=True, stop=(), stop_regex=None, \
            include_stop=False)"
    )]
    fn new(
        table: &TokenTable,
        skip_special_tokens: bool,
        stop: Vec<String>,
        stop_regex: Option<PyRef<'_, StopRegex>>,
        include_stop: bool,
    ) -> Self {
        Self {
            table: Arc::clone(&table.inner),
            state: TextState::new(TextOptions {
                detokenize: true,
                skip_special_tokens,
                stop,
                stop_regex: stop_regex.map(|regex| Arc::clone(&regex.inner)),
                include_stop,
            }),
            stopped: None,
        }
    }

    fn push(&mut self, token: i32) -> String {
        let mut out = String::new();
        let stopped = self.state.push(&self.table, token, true, &mut out);
        self.stopped = self.stopped.or(stopped);
        out
    }

    fn finish(&mut self) -> String {
        let mut out = String::new();
        let stopped = self.state.finish(&self.table, &mut out);
        self.stopped = self.stopped.or(stopped);
        out
    }

    #[getter]
    fn stopped(&self) -> Option<&str> {
        self.stopped.map(|i| self.state.stop(i))
    }
}

/// Patterns that end an answer, compiled.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct StopRegex {
    pub(crate) inner: Arc<chairlift_text::StopRegex>,
}

#[pymethods]
impl StopRegex {
    #[new]
    fn new(py: Python<'_>, patterns: Vec<String>) -> PyResult<Self> {
        let built = py.detach(|| chairlift_text::StopRegex::new(patterns));
        match built {
            Ok(regex) => Ok(Self {
                inner: Arc::new(regex),
            }),
            Err((position, message)) => Err(PyValueError::new_err((position, message))),
        }
    }
}
