//! One output that several threads write in places that never meet.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose parts threads take by range.
///
/// Safe splitting (`chunks_mut`) cannot express a share such as "these columns of every row".
#[derive(Clone, Copy)]
pub struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose users promise (see `take`) not to touch the same elements.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

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
}
