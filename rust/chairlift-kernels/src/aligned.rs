//! Memory that starts on a cache line.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a cache line; also of the widest vector register.
const LINE: usize = 64;

/// A number type for which all zero bits are a value.
///
/// # Safety
/// Zeroed memory is a valid value of the type, which needs no drop.
pub unsafe trait Zeroed: Copy {}

// SAFETY: zero.
unsafe impl Zeroed for f32 {}
// SAFETY: zero.
unsafe impl Zeroed for u32 {}
// SAFETY: a transparent `u16`.
unsafe impl Zeroed for half::bf16 {}

/// A zeroed slice of fixed length whose first element is on a cache line, so that vector loads of
/// whole lines never straddle two.
pub struct Aligned<T: Zeroed> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its memory as a `Box<[T]>` would.
unsafe impl<T: Zeroed + Send> Send for Aligned<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroed + Sync> Sync for Aligned<T> {}

impl<T: Zeroed> Aligned<T> {
    /// Allocates `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        if layout.size() == 0 {
            return Self {
                start: NonNull::dangling(),
                len,
            };
        }
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(layout) }.cast::<T>();
        let Some(start) = NonNull::new(memory) else {
            handle_alloc_error(layout)
        };
        Self { start, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::array::<T>(len)
            .and_then(|array| array.align_to(LINE))
            .expect("the size fits the address space")
    }
}

impl<T: Zeroed> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements, owned by self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroed> Drop for Aligned<T> {
    fn drop(&mut self) {
        let layout = Self::layout(self.len);
        if layout.size() != 0 {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_starts_on_a_line() {
        for len in [0, 1, 15, 1000] {
            let mut memory = Aligned::<f32>::zeroed(len);
            assert_eq!(memory.len(), len);
            assert!(memory.iter().all(|&number| number == 0.0));
            if len > 0 {
                assert_eq!(memory.as_ptr() as usize % LINE, 0);
                memory[len - 1] = 1.0;
            }
        }
    }
}
