//! Kernel calls that are kept, to be run without Python: what a captured graph is to a GPU.
//!
//! ```text
//!   with Recording() as recording:     calls of kernels on this thread are kept, and nothing is computed
//!       rms_norm(...)
//!       layer.forward(...)
//!   recording.run()                    computes all of them in order, as often as one likes
//! ```
//!
//! A forward pass makes some two hundred calls, each of which asks Python for its tensors. Kept calls hold their
//! tensors: only what these contain may change between two runs.

use crate::detach::detach_long;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::OnceLock;

/// One call of a kernel, with its arguments.
pub(crate) trait Call: Send + Sync {
    /// About how many multiply-adds it takes, or numbers it reads.
    fn work(&self) -> usize;

    /// Checks the arguments and computes; needs no interpreter.
    fn run(&self) -> PyResult<()>;
}

/// Calls in their order.
type Calls = Vec<Box<dyn Call>>;

thread_local! {
    static KEPT: RefCell<Option<Calls>> = const { RefCell::new(None) };
}

/// Runs a call, or keeps it where this thread is recording.
pub(crate) fn call(py: Python<'_>, call: impl Call + 'static) -> PyResult<()> {
    let call = KEPT.with_borrow_mut(|kept| match kept {
        Some(calls) => {
            calls.push(Box::new(call));
            None
        }
        None => Some(call),
    });
    match call {
        Some(call) => detach_long(py, call.work(), || call.run()),
        None => Ok(()),
    }
}

/// The calls that were made inside `with`.
#[pyclass(frozen, module = "chairlift._core")]
pub(crate) struct Recording {
    calls: OnceLock<Calls>,
}

#[pymethods]
impl Recording {
    #[new]
    fn new() -> Self {
        Self {
            calls: OnceLock::new(),
        }
    }

    fn __enter__(this: Py<Self>) -> PyResult<Py<Self>> {
        if this.get().calls.get().is_some() {
            let message = "recording: expected a new one, got one that has its calls";
            return Err(PyRuntimeError::new_err(message));
        }
        KEPT.with_borrow_mut(|kept| {
            if kept.is_some() {
                let message = "recording: this thread is recording already";
                return Err(PyRuntimeError::new_err(message));
            }
            *kept = Some(Vec::new());
            Ok(())
        })?;
        Ok(this)
    }

    #[pyo3(signature = (*raised))]
    fn __exit__(&self, raised: (Option<Py<PyAny>>, Py<PyAny>, Py<PyAny>)) {
        let calls = KEPT.take().unwrap_or_default();
        if raised.0.is_none() {
            // Nobody else has set them: `__enter__` was here.
            let _ = self.calls.set(calls);
        }
    }

    /// Computes all calls in their order, without the interpreter unless they are short.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let Some(calls) = self.calls.get() else {
            let message = "recording: expected one that has its calls; `with` has not ended";
            return Err(PyRuntimeError::new_err(message));
        };
        let work = calls
            .iter()
            .fold(0, |work: usize, call| work.saturating_add(call.work()));
        detach_long(py, work, || calls.iter().try_for_each(|call| call.run()))
    }
}
