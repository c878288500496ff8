//! Memory that starts on a cache line, or on a huge page where it is large.

use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a cache line; also of the widest vector register.
const LINE: usize = 64;

/// Bytes of a huge page of x86-64 and, mostly, `AArch64`.
const HUGE_PAGE: usize = 2 << 20;

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
    /// Where the memory is of the system, and not of the allocator.
    map: Option<MmapMut>,
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
                map: None,
            };
        }
        let (memory, map) = if layout.size() < HUGE_PAGE {
            // SAFETY: the size is not zero.
            (unsafe { alloc_zeroed(layout) }, None)
        } else {
            let mut map = huge_pages(layout.size()).unwrap_or_else(|_| handle_alloc_error(layout));
            let offset = map.as_ptr().align_offset(HUGE_PAGE);
            (map[offset..].as_mut_ptr(), Some(map))
        };
        let Some(start) = NonNull::new(memory.cast::<T>()) else {
            handle_alloc_error(layout)
        };
        Self { start, len, map }
    }

    fn layout(len: usize) -> Layout {
        let array = Layout::array::<T>(len).expect("the size fits the address space");
        array
            .align_to(LINE)
            .expect("the size fits the address space")
    }
}

/// `size` zeros from the first multiple of a huge page on, on huge pages where the system has them: a
/// stream of weights then waits less often for an address to be translated.
///
/// Fresh from the system: what the allocator has from others lies on small pages and stays there.
fn huge_pages(size: usize) -> std::io::Result<MmapMut> {
    let map = MmapMut::map_anon(size + HUGE_PAGE)?;
    // Whole pages only, so that no memory is taken behind the end. The system may refuse.
    #[cfg(target_os = "linux")]
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
        if layout.size() != 0 && self.map.is_none() {
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
