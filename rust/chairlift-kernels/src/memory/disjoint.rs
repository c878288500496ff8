//! One output that several threads write in places that never meet.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose parts threads take by range.
///
/// Safe splitting (`chunks_mut`) cannot express a share such as "these columns of every row".
///
/// Threads share it where they may share its elements:
///
/// ```
/// # use chairlift_kernels::memory::disjoint::Disjoint;
/// fn threads_share<T: Send + Sync>(_: &T) {}
/// threads_share(&Disjoint::new(&mut [1, 2]));
/// ```
///
/// What changes behind a shared reference is not such an element:
///
/// ```compile_fail,E0277
/// # use chairlift_kernels::memory::disjoint::Disjoint;
/// # use std::cell::Cell;
/// fn threads_share<T: Sync>(_: &T) {}
/// threads_share(&Disjoint::new(&mut [Cell::new(1), Cell::new(2)]));
/// ```
///
/// ```compile_fail,E0277
/// # use chairlift_kernels::memory::disjoint::Disjoint;
/// # use std::cell::Cell;
/// fn another_thread_gets<T: Send>(_: T) {}
/// another_thread_gets(Disjoint::new(&mut [Cell::new(1), Cell::new(2)]));
/// ```
#[derive(Clone, Copy)]
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: threads that have a copy get `&mut T` of elements by `take`, for which `T: Send` is enough since the callers
// keep these elements apart, and `&T` of the same elements by `share`, for which T must be `Sync`.
unsafe impl<T: Send + Sync> Send for Disjoint<'_, T> {}
// SAFETY: as above. A reference gives no more than a copy, which anyone with a reference can make.
unsafe impl<T: Send + Sync> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    /// Takes a slice to share out.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// The elements of a range.
    ///
    /// # Safety
    /// While the result lives, no other result of this function holds any of its elements.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline(always)]
    pub unsafe fn take(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range in bounds"
        );
        // SAFETY: in bounds of a slice that lives for 'a; the caller keeps the elements apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The elements of a range, to read.
    ///
    /// # Safety
    /// While the result lives, no result of [`Disjoint::take`] holds any of its elements.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[inline(always)]
    pub unsafe fn share(&self, range: Range<usize>) -> &'a [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range in bounds"
        );
        // SAFETY: in bounds of a slice that lives for 'a; the caller lets none of it be written.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    #[test]
    fn threads_write_the_columns_that_are_theirs() {
        let mut numbers = [0; 12];
        let shared = Disjoint::new(&mut numbers);
        thread::scope(|scope| {
            for column in 0..3 {
                scope.spawn(move || {
                    for row in 0..4 {
                        let place = row * 3 + column;
                        // SAFETY: a column belongs to one thread, which takes one place at a time.
                        let taken = unsafe { shared.take(place..place + 1) };
                        taken[0] = 10 * row + column;
                    }
                });
            }
        });
        assert_eq!(numbers, [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]);
    }

    #[test]
    fn a_range_out_of_bounds_is_a_panic() {
        let mut numbers = [0; 4];
        let shared = Disjoint::new(&mut numbers);
        for range in [0..5, 5..5, 3..usize::MAX] {
            // SAFETY: nothing is taken.
            let taken = AssertUnwindSafe(|| unsafe { shared.take(range) }.len());
            assert!(catch_unwind(taken).is_err());
        }
        // SAFETY: all else has ended.
        assert!(unsafe { shared.take(4..4) }.is_empty());
    }
}
