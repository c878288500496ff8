//! Drafts on their way to the scheduler, and the answers that have a use for them.

use chairlift_core::scheduler::{self, Scheduler};
use pyo3::{
    prelude::*,
    types::{PyIterator, PyList},
};

/// Tokens that are likely to follow, of some answers.
#[pyclass(module = "chairlift._core", frozen)]
pub(crate) struct Drafts {
    pub(crate) found: Vec<((u64, u32), Vec<i32>)>,
}

#[pymethods]
impl Drafts {
    /// Request, answer and tokens of each.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let list = PyList::empty(py);
        for ((request, index), tokens) in &self.found {
            list.append((*request, *index, tokens.clone()))?;
        }
        list.try_iter()
    }
}

/// An answer that a draft model may draft for.
#[pyclass(module = "chairlift._core", frozen, get_all)]
pub(crate) struct Undrafted {
    request_id: u64,
    index: u32,
    slot: u32,
    num_prompt: usize,
    num_output: usize,
}

impl From<scheduler::DraftCandidate> for Undrafted {
    fn from(candidate: scheduler::DraftCandidate) -> Self {
        Self {
            request_id: candidate.request.0,
            index: candidate.index,
            slot: candidate.slot,
            num_prompt: candidate.num_prompt,
            num_output: candidate.num_tokens - candidate.num_prompt,
        }
    }
}

/// How many drafts pay for each of these answers.
pub(crate) fn undrafted(scheduler: &mut Scheduler, pass_ns: u64) -> (usize, Vec<Undrafted>) {
    let mut found = Vec::new();
    let num_drafts = scheduler.undrafted(pass_ns, &mut found);
    (num_drafts, found.into_iter().map(Undrafted::from).collect())
}

/// Adds the classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Drafts>()?;
    module.add_class::<Undrafted>()
}
