//! Whether memory can be written: torch lets a tensor lie over a read-only mapping of a file, where a write would end
//! the process.

/// Whether a write to this address succeeds, as far as the system says so.
///
/// Asks for one page: a tensor lies in one mapping.
#[cfg(target_os = "linux")]
pub(crate) fn is_writable(address: usize) -> bool {
    use std::sync::OnceLock;

    static CAN_ASK: OnceLock<bool> = OnceLock::new();
    if populate(address) {
        return true;
    }
    let can_ask = CAN_ASK.get_or_init(|| populate((&raw const CAN_ASK).addr()));
    // Memory of a device cannot be populated, but perhaps written.
    !can_ask || is_mapped_for_writing(address).unwrap_or(true)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn is_writable(_address: usize) -> bool {
    true
}

/// Has the system map a page as a write would, since Linux 5.14.
#[cfg(target_os = "linux")]
fn populate(address: usize) -> bool {
    // SAFETY: a question about the system.
    let page_size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as usize;
    let page = std::ptr::without_provenance_mut(address - address % page_size);
    // SAFETY: the contents of memory stay as they are; what is no memory is an error.
    unsafe { libc::madvise(page, 1, libc::MADV_POPULATE_WRITE) == 0 }
}

/// Whether the list of mappings says so.
#[cfg(target_os = "linux")]
fn is_mapped_for_writing(address: usize) -> Option<bool> {
    let mappings = std::fs::read_to_string("/proc/self/maps").ok()?;
    let is_writable = mappings.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).ok());
        (start?..end?)
            .contains(&address)
            .then(|| rest.as_bytes().get(1) == Some(&b'w'))
    });
    Some(is_writable.unwrap_or(false))
}
