//! Whether this machine has AMX, and this process may use it.

use std::sync::OnceLock;

/// Whether tiles of pairs of bf16 can be multiplied here.
///
/// Asks the system for leave, which a process needs once for all its threads: what a thread has in tiles
/// is 8 KiB that the system must save with it.
pub(crate) fn is_supported() -> bool {
    static IS_SUPPORTED: OnceLock<bool> = OnceLock::new();
    *IS_SUPPORTED.get_or_init(|| {
        #[cfg(target_os = "linux")]
        return has_instructions() && is_permitted();
        #[cfg(not(target_os = "linux"))]
        false
    })
}

/// Whether the processor has the instructions and the system keeps what is in tiles.
#[cfg(target_os = "linux")]
#[allow(
    unused_unsafe,
    reason = "asking the processor what it is became safe after the oldest Rust that builds this"
)]
fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    // Bits of CPUID leaves 1 (ECX) and 7 (EDX), and of the register XCR0.
    const OSXSAVE: u32 = 1 << 27;
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const ALL: u32 = AMX_BF16 | AMX_TILE;
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;

    // SAFETY: every x86-64 has the instruction.
    let (max_leaf, features) = unsafe { (__cpuid(0).eax, __cpuid(1).ecx) };
    if max_leaf < 7 || features & OSXSAVE == 0 {
        return false;
    }
    // SAFETY: as above; the flag says that the system has turned `xgetbv` on.
    let (extended, kept) = unsafe { (__cpuid_count(7, 0).edx, _xgetbv(0)) };
    extended & ALL == ALL && kept & TILE_STATE == TILE_STATE
}

/// Asks Linux for leave to use tiles (Documentation/arch/x86/xstate.rst); again does no harm.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const SYS_ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;

    let status: i64;
    // SAFETY: a call to the system that touches no memory of the process; it changes what the declaration says.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    status == 0
}
