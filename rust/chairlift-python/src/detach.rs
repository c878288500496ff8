//! When a call lets go of the interpreter.
//!
//! A thread that lets go has to win the interpreter back, and a busy event loop gives it up only after Python's switch
//! interval. So a call keeps the interpreter unless it takes longer than the wait is worth; and the hundreds of calls of
//! a forward pass are one ([`crate::recording`]), which lets go once: a storm of calls cannot stretch a step by as many
//! intervals.
//!
//! A call that keeps the interpreter never waits for the kernels' threads while they compute for another caller.

use chairlift_kernels::memory::{aligned::OutOfMemory, pool};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Multiply-adds, or elements read, from which a call lets go: some 50 microseconds of one core.
const LONG: usize = 1 << 20;

/// Whether a call of so much work (multiply-adds, or elements read) lets go of the interpreter.
pub(crate) fn is_long(work: usize) -> bool {
    work >= LONG
}

/// Runs `call` without the interpreter.
///
/// # Errors
/// `MemoryError` if an allocation fails, else those of the call.
pub(crate) fn detach<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> PyResult<T> + Send,
) -> PyResult<T> {
    or_memory_error(|| py.detach(call))
}

/// Runs `call` with the interpreter, and alone where the kernels' threads are busy.
///
/// # Errors
/// As of [`detach`].
pub(crate) fn with_gil<T>(call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    or_memory_error(|| pool::inline_only(call))
}

/// An allocation that fails unwinds, from whichever thread of the pool.
fn or_memory_error<T>(call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let result = catch_unwind(AssertUnwindSafe(call));
    result.unwrap_or_else(|payload| match payload.downcast_ref::<OutOfMemory>() {
        Some(error) => Err(PyMemoryError::new_err(error.to_string())),
        None => resume_unwind(payload),
    })
}
