//! How memory is read: asked for before it is needed, and once more where registers are short.

/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// Asks for a cache line, for the nearest cache; does nothing where there is no memory.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Hides from the compiler that a slice was read before. It then reads the slice again from the nearest cache,
/// instead of keeping it in registers that the sums need.
#[inline(always)]
pub(crate) fn opaque<T>(slice: &[T]) -> &[T] {
    #[cfg(target_arch = "x86_64")]
    {
        let mut start = slice.as_ptr();
        // SAFETY: no instruction at all: the pointer stays what it is.
        unsafe {
            std::arch::asm!("/* {0} */", inout(reg) start, options(pure, readonly, nostack, preserves_flags));
            std::slice::from_raw_parts(start, slice.len())
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    slice
}
