//! When a call lets go of the interpreter.
//!
//! Who lets go has to win the interpreter back, and a busy event loop gives it up only after Python's switch interval. A
//! forward pass makes hundreds of calls of a few microseconds: were each to let go, a storm of calls would stretch a step
//! by as many intervals. So a call keeps the interpreter unless it takes longer than the wait is worth.

use pyo3::prelude::*;

/// Multiply-adds, or numbers read, from which a call lets go: some 50 microseconds of one core.
const LONG: usize = 1 << 20;

/// Runs `call`, without the interpreter if its `work` (multiply-adds, or numbers read) is long.
pub(crate) fn detach_long<T: Send>(
    py: Python<'_>,
    work: usize,
    call: impl FnOnce() -> T + Send,
) -> T {
    if work >= LONG {
        py.detach(call)
    } else {
        call()
    }
}
