//! Memory that starts on a cache line, or on a huge page where it is large.

use bytemuck::Zeroable;
use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut};
use std::panic::resume_unwind;
use std::ptr::NonNull;

/// Bytes of a cache line; also of the widest vector register.
const LINE: usize = 64;

/// Bytes of a huge page of x86-64 and, mostly, `AArch64`.
const HUGE_PAGE: usize = 2 << 20;

/// The system has no memory for so many bytes: the payload with which [`Aligned::zeroed`] unwinds.
///
/// Layers are packed and scratch memory is taken on the threads of the pool, deep within kernels; the pool brings
/// the payload to the caller, as that of any panic. The bindings make a `MemoryError` of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {bytes} bytes could not be allocated")]
pub struct OutOfMemory {
    /// Bytes that were wanted.
    pub bytes: usize,
}

/// A zeroed slice of fixed length whose first element is on a cache line, so that vector loads of
/// whole lines never straddle two. Its numbers need no drop.
pub struct Aligned<T: Zeroable + Copy> {
    start: NonNull<T>,
    len: usize,
    /// Where the memory is of the system, and not of the allocator.
    map: Option<MmapMut>,
}

// SAFETY: it owns its memory as a `Box<[T]>` would.
unsafe impl<T: Zeroable + Copy + Send> Send for Aligned<T> {}
// SAFETY: as above.
unsafe impl<T: Zeroable + Copy + Sync> Sync for Aligned<T> {}

impl<T: Zeroable + Copy> Aligned<T> {
    /// Allocates `len` zeros.
    ///
    /// # Panics
    /// With [`OutOfMemory`] as payload and without a message, if there is no memory for them.
    pub fn zeroed(len: usize) -> Self {
        let Some(layout) = Self::layout(len) else {
            refuse(len.saturating_mul(size_of::<T>()))
        };
        if layout.size() == 0 {
            return Self {
                start: NonNull::dangling(),
                len,
                map: None,
            };
        }
        let (memory, map) = if layout.size() < HUGE_PAGE {
            // SAFETY: the size is not zero.
            (unsafe { alloc_zeroed(layout) }, None)
        } else {
            let Ok(mut map) = huge_pages(layout.size()) else {
                refuse(layout.size())
            };
            let offset = map.as_ptr().align_offset(HUGE_PAGE);
            (map[offset..].as_mut_ptr(), Some(map))
        };
        let Some(start) = NonNull::new(memory.cast::<T>()) else {
            refuse(layout.size())
        };
        Self { start, len, map }
    }

    /// Where the size fits the address space.
    fn layout(len: usize) -> Option<Layout> {
        Layout::array::<T>(len).ok()?.align_to(LINE).ok()
    }
}

/// Unwinds for want of memory.
fn refuse(bytes: usize) -> ! {
    resume_unwind(Box::new(OutOfMemory { bytes }))
}

/// `size` zeros from the first multiple of a huge page on, on huge pages where the system has them: a
/// stream of weights then waits less often for an address to be translated.
///
/// Fresh from the system: what the allocator has from others lies on small pages and stays there.
fn huge_pages(size: usize) -> std::io::Result<MmapMut> {
    let map = MmapMut::map_anon(size.saturating_add(HUGE_PAGE))?;
    // Whole pages only, so that no memory is taken behind the end. The system may refuse; Miri has no such call.
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        let offset = map.as_ptr().align_offset(HUGE_PAGE);
        let _ = map.advise_range(
            memmap2::Advice::HugePage,
            offset,
            size / HUGE_PAGE * HUGE_PAGE,
        );
    }
    Ok(map)
}

impl<T: Zeroable + Copy> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements, owned by self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable + Copy> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Zeroable + Copy> Drop for Aligned<T> {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.len)
            && layout.size() != 0
            && self.map.is_none()
        {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri itself ends where memory does")]
    fn memory_that_there_is_not_is_an_unwinding_with_its_size() {
        for (len, bytes) in [(1 << 55, 1 << 57), (usize::MAX, usize::MAX)] {
            let caught = std::panic::catch_unwind(|| drop(Aligned::<f32>::zeroed(len)));
            let payload = caught.expect_err("more than there can be");
            assert_eq!(
                payload.downcast_ref::<OutOfMemory>(),
                Some(&OutOfMemory { bytes })
            );
        }
    }

    #[test]
    fn memory_is_zero_and_starts_on_a_line() {
        for len in [0, 1, 15, 1000, (3 << 20) / 4] {
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
