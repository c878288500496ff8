//! When a call lets go of the interpreter.
//!
//! Who lets go has to win the interpreter back, and a busy event loop gives it up only after Python's switch interval. So
//! a call keeps the interpreter unless it takes longer than the wait is worth; and the hundreds of calls of a forward pass
//! are one ([`crate::recording`]), which lets go once: a storm of calls cannot stretch a step by as many intervals.

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
