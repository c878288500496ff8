//! Events of a step, turned into Python objects only when they are iterated: the engine thread passes them on unread.

use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use chairlift_core::events::{self, EndReason, EventKind, Failure};
use chairlift_text::answer::{Content, Field};
use pyo3::{
    prelude::*,
    types::{PyIterator, PyList},
};

use crate::waits;

/// New output of one answer in one step.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct TokensEvent {
    request_id: u64,
    index: u32,
    text: String,
    reasoning: String,
    /// Position, id, name and arguments of parts.
    tool_calls: Vec<(u32, String, String, String)>,
    token_ids: Vec<i32>,
    sample_slot: usize,
}

/// A piece of a prompt.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct PromptEvent {
    request_id: u64,
    offset: usize,
    text: String,
    token_ids: Vec<i32>,
    score_slot: usize,
    num_scores: usize,
}

/// What a request has cost.
#[pyclass(module = "chairlift._core", frozen, get_all)]
#[derive(Clone)]
pub(crate) struct Account {
    prompt_tokens: usize,
    cached_tokens: usize,
    transferred_tokens: usize,
    output_tokens: usize,
    arrival: u64,
    first_scheduled: Option<u64>,
    first_token: Option<u64>,
    finished: u64,
    num_preemptions: usize,
    num_recomputed_tokens: usize,
    waits: Vec<(&'static str, u64)>,
}

/// An answer is complete.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct FinishedEvent {
    request_id: u64,
    index: u32,
    reason: &'static str,
    stop: Option<String>,
    stop_token_id: Option<i32>,
    account: Py<Account>,
    last: bool,
}

/// A request ended by an error.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct FailedEvent {
    request_id: u64,
    reason: &'static str,
    account: Py<Account>,
}

/// What one step produced, in order.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct Events {
    inner: events::Events,
    buffers: Buffers,
}

/// Memory of events that no object holds any more, for later steps: what a large batch needs is more than an allocator
/// keeps, and fresh pages cost as much as the step itself.
#[derive(Clone, Default)]
pub(crate) struct Buffers(Arc<Mutex<Vec<events::Events>>>);

impl Buffers {
    /// As many as a consumer that lags holds at a time; it may hold more.
    const MAX_SPARE: usize = 4;

    /// Events that `fill` writes into memory used before.
    pub(crate) fn take(&self, fill: impl FnOnce(&mut events::Events)) -> Events {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut inner = spare.unwrap_or_default();
        fill(&mut inner);
        let buffers = self.clone();
        Events { inner, buffers }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let mut spare = self
            .buffers
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if spare.len() < Buffers::MAX_SPARE {
            spare.push(mem::take(&mut self.inner));
        }
    }
}

#[pymethods]
impl Events {
    fn __len__(&self) -> usize {
        self.inner.list.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.objects(py, 0..self.inner.list.len())?.try_iter()
    }

    /// The requests of which nothing follows.
    #[getter]
    fn ended(&self) -> Vec<u64> {
        let is_last = |kind: &EventKind| match kind {
            EventKind::Ended(end) => self.inner.ends[*end].last,
            _ => false,
        };
        let ended = self.inner.list.iter().filter(|event| is_last(&event.kind));
        ended.map(|event| event.request.0).collect()
    }
}

impl Events {
    pub(crate) fn inner(&self) -> &events::Events {
        &self.inner
    }

    /// The events at these positions as Python objects.
    pub(crate) fn objects<'py>(
        &self,
        py: Python<'py>,
        positions: impl IntoIterator<Item = usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for position in positions {
            list.append(self.object(py, &self.inner.list[position])?)?;
        }
        Ok(list)
    }

    /// The reasoning, and the parts of function calls.
    fn fields(&self, fields: &[Field]) -> (String, Vec<(u32, String, String, String)>) {
        let (mut reasoning, mut calls) = (String::new(), Vec::new());
        for field in fields {
            let text = self.inner.field_text[field.text.clone()].to_owned();
            match field.content {
                Content::Reasoning => reasoning.push_str(&text),
                Content::Call { position, id } => {
                    calls.push((position, id.as_str().to_owned(), text, String::new()));
                }
                Content::Arguments { position } => {
                    calls.push((position, String::new(), String::new(), text));
                }
            }
        }
        (reasoning, calls)
    }

    fn object(&self, py: Python<'_>, event: &events::Event) -> PyResult<Py<PyAny>> {
        let (request_id, index) = (event.request.0, event.index);
        match &event.kind {
            EventKind::Tokens {
                text,
                fields,
                tokens,
                sample_slot,
            } => {
                let (reasoning, tool_calls) = self.fields(&self.inner.fields[fields.clone()]);
                let event = TokensEvent {
                    request_id,
                    index,
                    text: self.inner.text[text.clone()].to_owned(),
                    reasoning,
                    tool_calls,
                    token_ids: self.inner.tokens[tokens.clone()].to_vec(),
                    sample_slot: *sample_slot,
                };
                Ok(Py::new(py, event)?.into_any())
            }
            EventKind::Prompt {
                offset,
                text,
                tokens,
                scores,
            } => {
                let event = PromptEvent {
                    request_id,
                    offset: *offset,
                    text: self.inner.text[text.clone()].to_owned(),
                    token_ids: self.inner.tokens[tokens.clone()].to_vec(),
                    score_slot: scores.start,
                    num_scores: scores.len(),
                };
                Ok(Py::new(py, event)?.into_any())
            }
            EventKind::Ended(end) => {
                let events::End {
                    reason,
                    stats,
                    last,
                } = &self.inner.ends[*end];
                let account = Py::new(py, Account::from(stats))?;
                if let EndReason::Failed(failure) = reason {
                    let reason = failure_name(*failure);
                    let event = FailedEvent {
                        request_id,
                        reason,
                        account,
                    };
                    return Ok(Py::new(py, event)?.into_any());
                }
                let (reason, stop, stop_token_id) = match reason {
                    EndReason::StopString(stop) => ("stop", Some(stop.clone()), None),
                    EndReason::StopToken(token) => ("stop", None, Some(*token)),
                    EndReason::Length => ("length", None, None),
                    EndReason::TimeLimit => ("time_limit", None, None),
                    EndReason::Cancelled | EndReason::Failed(_) => ("cancelled", None, None),
                };
                let event = FinishedEvent {
                    request_id,
                    index,
                    reason,
                    stop,
                    stop_token_id,
                    account,
                    last: *last,
                };
                Ok(Py::new(py, event)?.into_any())
            }
        }
    }
}

impl From<&chairlift_core::RequestStats> for Account {
    fn from(stats: &chairlift_core::RequestStats) -> Self {
        Self {
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            transferred_tokens: stats.transferred_tokens,
            output_tokens: stats.output_tokens,
            arrival: stats.arrival,
            first_scheduled: stats.first_scheduled,
            first_token: stats.first_token,
            finished: stats.finished,
            num_preemptions: stats.num_preemptions,
            num_recomputed_tokens: stats.num_recomputed_tokens,
            waits: waits::times(&stats.wait_times),
        }
    }
}

/// The end of a request as Python names it: lower case completes the answer, upper case fails the request.
pub(crate) fn end_reason(name: &str) -> Option<EndReason> {
    Some(match name {
        "cancelled" => EndReason::Cancelled,
        "time_limit" => EndReason::TimeLimit,
        "STEP_FAILED" => EndReason::Failed(Failure::StepFailed),
        "ENGINE_DOWN" => EndReason::Failed(Failure::EngineDown),
        "DRAINING" => EndReason::Failed(Failure::Draining),
        "UNKNOWN_ADAPTER" => EndReason::Failed(Failure::UnknownAdapter),
        "PREFILL_UNAVAILABLE" => EndReason::Failed(Failure::PrefillUnavailable),
        _ => return None,
    })
}

/// What Python calls a failure.
pub(crate) fn failure_name(failure: Failure) -> &'static str {
    match failure {
        Failure::QueueTimeout => "QUEUE_TIMEOUT",
        Failure::NumericFault => "NUMERIC_FAULT",
        Failure::NoTokenLeft => "NO_TOKEN_LEFT",
        Failure::ConstraintTooComplex => "CONSTRAINT_TOO_COMPLEX",
        Failure::StepFailed => "STEP_FAILED",
        Failure::EngineDown => "ENGINE_DOWN",
        Failure::Draining => "DRAINING",
        Failure::UnknownAdapter => "UNKNOWN_ADAPTER",
        Failure::PrefillUnavailable => "PREFILL_UNAVAILABLE",
    }
}
