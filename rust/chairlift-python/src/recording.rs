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
//! tensors: only what these contain may change between two runs. A run compares each tensor with what it was, since the
//! calls have its address.

use crate::detach::{detach, is_long, with_gil};
use chairlift_tensor::Tensor;
use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// A tensor of a call, after the name of the argument.
pub(crate) type NamedTensor<'a> = (&'static str, &'a Tensor);

/// One call of a kernel, with its arguments.
pub(crate) trait Call: Send + Sync {
    /// About how many multiply-adds it takes, or elements it reads.
    fn work(&self) -> usize;

    /// All tensors that it reads or writes.
    fn tensors(&self) -> Vec<NamedTensor<'_>>;

    /// Checks the arguments and computes; needs no interpreter.
    fn run(&self) -> PyResult<()>;
}

/// Calls in their order.
pub(crate) type Calls = Vec<Box<dyn Call>>;

/// Where calls are kept while `with` lasts.
pub(crate) type Open = Mutex<Calls>;

thread_local! {
    /// Of the recording that this thread makes: it owns them, so that its end is the end of this, too.
    static KEPT: RefCell<Weak<Open>> = const { RefCell::new(Weak::new()) };
}

/// The calls that this thread keeps.
pub(crate) fn kept() -> Option<Arc<Open>> {
    KEPT.with_borrow(Weak::upgrade)
}

/// The calls that were made inside `with`.
#[pyclass(frozen, module = "chairlift._core")]
pub(crate) struct Recording {
    open: Mutex<Option<Arc<Open>>>,
    recorded: OnceLock<Recorded>,
    is_running: AtomicBool,
}

/// Calls that are complete, and the tensors that they have the addresses of.
struct Recorded {
    calls: Calls,
    /// Each once.
    tensors: Vec<(&'static str, Tensor)>,
    /// What owns their memory, which a tensor may lose while a run is under way.
    _storages: Vec<Py<PyAny>>,
}

impl Recorded {
    fn new(py: Python<'_>, calls: Calls) -> PyResult<Self> {
        let mut tensors: Vec<NamedTensor<'_>> = Vec::new();
        let mut seen: HashMap<usize, &Tensor> = HashMap::new();
        for (name, tensor) in calls.iter().flat_map(|call| call.tensors()) {
            let first = *seen.entry(tensor.identity()).or_insert(tensor);
            // One that is described in two ways was changed between two calls: a run will refuse it.
            if std::ptr::eq(first, tensor) || !first.is_same(tensor) {
                tensors.push((name, tensor));
            }
        }
        let storages = tensors.iter().map(|(_, tensor)| tensor.storage(py));
        let storages = storages.collect::<PyResult<_>>()?;
        let tensors = tensors.into_iter();
        let tensors = tensors.map(|(name, tensor)| (name, tensor.clone_ref(py)));
        Ok(Self {
            tensors: tensors.collect(),
            _storages: storages,
            calls,
        })
    }
}

#[pymethods]
impl Recording {
    #[new]
    fn new() -> Self {
        Self {
            open: Mutex::new(None),
            recorded: OnceLock::new(),
            is_running: AtomicBool::new(false),
        }
    }

    fn __enter__(this: Py<Self>) -> PyResult<Py<Self>> {
        let Self { open, recorded, .. } = this.get();
        let mut open = open.lock();
        let message = if recorded.get().is_some() {
            "recording: expected a new one, got one that has its calls"
        } else if kept().is_some() {
            "recording: this thread is recording already"
        } else if open.is_some() {
            "recording: another thread is recording with this one"
        } else {
            let calls = open.insert(Arc::default());
            KEPT.set(Arc::downgrade(calls));
            drop(open);
            return Ok(this);
        };
        Err(PyRuntimeError::new_err(message))
    }

    #[pyo3(signature = (*raised))]
    fn __exit__(
        &self,
        py: Python<'_>,
        raised: (Option<Py<PyAny>>, Py<PyAny>, Py<PyAny>),
    ) -> PyResult<()> {
        let mut open = self.open.lock();
        let calls = match (&*open, kept()) {
            (Some(held), Some(kept)) if Arc::ptr_eq(held, &kept) => {
                std::mem::take(&mut *held.lock())
            }
            _ => {
                let message = "recording: expected the thread that `with` began on, and an end for each beginning";
                return Err(PyRuntimeError::new_err(message));
            }
        };
        KEPT.take();
        *open = None;
        drop(open);
        if raised.0.is_none() {
            // There was none: `__enter__` saw to it.
            let _ = self.recorded.set(Recorded::new(py, calls)?);
        }
        Ok(())
    }

    /// Computes all calls in their order, without the interpreter unless they are short.
    fn run(&self, py: Python<'_>) -> PyResult<()> {
        let Some(recorded) = self.recorded.get() else {
            let message = "recording: expected one that has its calls; `with` has not ended";
            return Err(PyRuntimeError::new_err(message));
        };
        let _running = Running::begin(&self.is_running)?;
        for (name, tensor) in &recorded.tensors {
            tensor.check_unchanged(py, name)?;
        }
        let work = recorded.calls.iter().map(|call| call.work());
        let work = work.fold(0, usize::saturating_add);
        let run = || recorded.calls.iter().try_for_each(|call| call.run());
        if is_long(work) {
            detach(py, run)
        } else {
            with_gil(run)
        }
    }
}

/// One run of a recording: its calls write the same buffers.
struct Running<'a>(&'a AtomicBool);

impl<'a> Running<'a> {
    fn begin(is_running: &'a AtomicBool) -> PyResult<Self> {
        if is_running.swap(true, Ordering::Acquire) {
            let message =
                "recording: expected one run at a time, got one while another is under way";
            return Err(PyRuntimeError::new_err(message));
        }
        Ok(Self(is_running))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
