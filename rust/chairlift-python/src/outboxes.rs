//! `Outboxes`: the messages of all streams; any thread may read its figures.

use std::sync::{Mutex, MutexGuard, PoisonError};

use chairlift_core::RequestId;
use chairlift_delivery::{
    self as delivery, Histogram, LogId, Options, PromptDelivery, Scores, StreamId,
};
use chairlift_tensor::{Borrows, Tensor};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyList},
};

use crate::{candidates::Candidates, events::Events};

/// What became of the events of a step.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct Posted {
    woken: Vec<usize>,
    filled: Vec<usize>,
    started: Vec<u64>,
    rest: Py<PyList>,
}

/// Streams, the requests that send to them, and what is measured on the way.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct Outboxes {
    inner: Mutex<delivery::Outboxes>,
}

impl Outboxes {
    fn inner(&self) -> MutexGuard<'_, delivery::Outboxes> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn counts(histogram: &Histogram) -> (Vec<u64>, f64) {
    (histogram.counts().to_vec(), histogram.sum())
}

#[pymethods]
impl Outboxes {
    #[new]
    #[pyo3(signature = (*, max_token_bytes, first_token_bounds, inter_token_bounds))]
    fn new(
        max_token_bytes: usize,
        first_token_bounds: Vec<f64>,
        inter_token_bounds: Vec<f64>,
    ) -> Self {
        Self {
            inner: Mutex::new(delivery::Outboxes::new(
                max_token_bytes,
                Histogram::new(first_token_bounds),
                Histogram::new(inter_token_bounds),
            )),
        }
    }

    fn open(&self) -> usize {
        self.inner().open().0
    }

    fn close(&self, stream: usize) {
        self.inner().close(StreamId(stream));
    }

    #[pyo3(signature = (request, stream, request_id, event, *, group, arrived_at, text, token_ids, logprobs, interval, num_answers = 1,
        num_candidates = 0, echo = false, prompt_logprobs = false, num_prompt_candidates = 0, log = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "keyword arguments of the Python method"
    )]
    #[expect(
        clippy::fn_params_excessive_bools,
        reason = "keyword arguments of the Python method"
    )]
    fn track(
        &self,
        request: u64,
        stream: usize,
        request_id: &str,
        event: &[u8],
        group: usize,
        arrived_at: u64,
        text: bool,
        token_ids: bool,
        logprobs: bool,
        interval: u32,
        num_answers: usize,
        num_candidates: usize,
        echo: bool,
        prompt_logprobs: bool,
        num_prompt_candidates: usize,
        log: Option<u64>,
    ) -> PyResult<()> {
        let options = Options {
            text,
            token_ids,
            logprobs,
            num_candidates,
            prompt: PromptDelivery {
                echo,
                logprobs: prompt_logprobs,
                num_candidates: num_prompt_candidates,
            },
            interval,
            group,
            num_answers,
            log: log.map(LogId),
        };
        let (request, stream) = (RequestId(request), StreamId(stream));
        if self
            .inner()
            .track(request, stream, request_id, event, options, arrived_at)
        {
            return Ok(());
        }
        Err(PyValueError::new_err(
            "stream: expected an open one, got a closed one",
        ))
    }

    fn put(&self, stream: usize, event: &[u8]) {
        self.inner().put(StreamId(stream), event);
    }

    #[pyo3(signature = (request, event, *, index = 0, last = true, only_logged = false))]
    fn end(&self, request: u64, event: Option<&[u8]>, index: usize, last: bool, only_logged: bool) {
        self.inner()
            .end(RequestId(request), index, last, event, only_logged);
    }

    fn open_log(&self, max_bytes: usize) -> u64 {
        self.inner().open_log(max_bytes).0
    }

    fn close_log(&self, log: u64) {
        self.inner().close_log(LogId(log));
    }

    fn shrink_log(&self, log: u64) -> usize {
        self.inner().shrink_log(LogId(log))
    }

    fn log_range(&self, log: u64) -> (u32, u32) {
        self.inner().log_range(LogId(log))
    }

    fn reroute(&self, request: u64, stream: usize, request_id: &str) -> bool {
        self.inner()
            .reroute(RequestId(request), StreamId(stream), request_id)
    }

    fn replay(&self, log: u64, stream: usize, request_id: &str, after: u32) -> bool {
        self.inner()
            .replay(LogId(log), StreamId(stream), request_id, after)
    }

    fn forget(&self, request: u64) {
        self.inner().forget(RequestId(request));
    }

    // The interpreter lock stays: this takes microseconds, and to get it back may take milliseconds.
    #[pyo3(signature = (now, events, logprobs, ranks, candidates = None, prompt = None))]
    #[expect(
        clippy::too_many_arguments,
        reason = "flat by contract: one crossing per step"
    )]
    fn post(
        &self,
        py: Python<'_>,
        now: u64,
        events: &Events,
        logprobs: Tensor,
        ranks: Tensor,
        candidates: Option<&Candidates>,
        prompt: Option<(Tensor, Tensor, Tensor, Tensor)>,
    ) -> PyResult<Posted> {
        let mut borrows = Borrows::default();
        let logprobs = borrows.slice::<f32>("logprobs", &logprobs)?;
        let ranks = borrows.slice::<i32>("ranks", &ranks)?;
        let mut scores = Scores {
            logprobs,
            ranks,
            ..Scores::default()
        };
        if let Some(candidates) = candidates {
            scores.stride = candidates.inner.stride;
            scores.candidate_ids = &candidates.inner.ids;
            scores.candidate_logprobs = &candidates.inner.logprobs;
        }
        let mut prompt_scores = Scores::default();
        if let Some((logprobs, ranks, ids, candidate_logprobs)) = &prompt {
            let [_, stride] = ids.dims("candidate_ids")?;
            prompt_scores = Scores {
                logprobs: borrows.slice("prompt logprobs", logprobs)?,
                ranks: borrows.slice("prompt ranks", ranks)?,
                stride,
                candidate_ids: borrows.slice("candidate_ids", ids)?,
                candidate_logprobs: borrows.slice("candidate_logprobs", candidate_logprobs)?,
            };
        }
        let posted = self
            .inner()
            .post(now, events.inner(), scores, prompt_scores);
        let streams = |ids: Vec<StreamId>| ids.into_iter().map(|id| id.0).collect();
        Ok(Posted {
            woken: streams(posted.woken),
            filled: streams(posted.filled),
            started: posted.started.into_iter().map(|id| id.0).collect(),
            rest: events.objects(py, posted.rest)?.unbind(),
        })
    }

    fn take<'py>(&self, py: Python<'py>, stream: usize) -> PyResult<Bound<'py, PyList>> {
        let messages = self.inner().take(StreamId(stream));
        PyList::new(py, messages.iter().map(|message| PyBytes::new(py, message)))
    }

    fn is_empty(&self, stream: usize) -> bool {
        self.inner().is_empty(StreamId(stream))
    }

    #[getter]
    fn num_tokens(&self) -> Vec<u64> {
        self.inner().num_tokens().to_vec()
    }

    #[getter]
    fn first_token(&self) -> (Vec<u64>, f64) {
        counts(self.inner().first_token())
    }

    #[getter]
    fn inter_token(&self) -> (Vec<u64>, f64) {
        counts(self.inner().inter_token())
    }
}
