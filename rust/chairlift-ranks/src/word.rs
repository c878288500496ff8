//! A word of shared memory, and how to sleep until it changes.

use rustix::thread::futex::{self, Flags, Timespec};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A 32-bit word that all ranks see. Every access is in one order that all of them agree on.
pub trait Word {
    /// Reads the word.
    fn load(&self) -> u32;

    /// Writes the word.
    fn store(&self, value: u32);

    /// Writes `new` where the word is `current`; gives what it was.
    ///
    /// # Errors
    /// What the word is, where that is not `current`.
    fn compare_exchange(&self, current: u32, new: u32) -> Result<u32, u32>;

    /// Sets bits.
    fn set_bits(&self, bits: u32);

    /// Adds, and wraps around.
    fn add(&self, number: u32);

    /// Sleeps while the word is `value`, at most so long; it may return before.
    fn sleep(&self, value: u32, timeout: Duration);

    /// Wakes all that sleep on the word.
    fn wake(&self);
}

/// The futex is not private to a process: the ranks are processes.
impl Word for AtomicU32 {
    fn load(&self) -> u32 {
        self.load(Ordering::SeqCst)
    }

    fn store(&self, value: u32) {
        self.store(value, Ordering::SeqCst);
    }

    fn compare_exchange(&self, current: u32, new: u32) -> Result<u32, u32> {
        self.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn set_bits(&self, bits: u32) {
        self.fetch_or(bits, Ordering::SeqCst);
    }

    fn add(&self, number: u32) {
        self.fetch_add(number, Ordering::SeqCst);
    }

    fn sleep(&self, value: u32, timeout: Duration) {
        let timeout = Timespec::try_from(timeout).ok();
        // It returns for a wake, another value, the time, or a signal: the caller looks again after each.
        let _ = futex::wait(self, Flags::empty(), value, timeout.as_ref());
    }

    fn wake(&self) {
        // It fails for no address that is mapped.
        let _ = futex::wake(self, Flags::empty(), i32::MAX as u32);
    }
}
