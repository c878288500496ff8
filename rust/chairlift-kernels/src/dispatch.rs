//! Chooses the instruction set at run time.
//!
//! A kernel is a value that implements [`Kernel`]: its `run` is generic code, always inlined, and
//! [`dispatch`] holds one instance of it per instruction set. Inside an instance the compiler may use
//! that set's registers for everything that was inlined, so a kernel has one source.
//! Closures and functions that are not inlined would be compiled without the set: hot code has none.

use std::sync::OnceLock;

/// Instruction sets that kernels are compiled for, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstructionSet {
    /// x86-64 with 512-bit registers.
    Avx512,
    /// x86-64 with 256-bit registers and fused multiply-add.
    Avx2,
    /// Whatever the build targets.
    Portable,
}

impl InstructionSet {
    /// The name that `CHAIRLIFT_CPU` and `cpu_features()` use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }
}

/// What a kernel may ask of the set that it is compiled for.
pub trait Isa: Copy + Send + Sync {
    /// Rows of a tile of [`crate::tile`] at most, so that accumulators stay in registers.
    const ROWS: usize;

    /// Whether registers have 16 lanes, which is when a panel of 32 columns is worth it.
    const WIDE: bool;

    /// `a * b + c`: fused where the set has the instruction, else two roundings.
    ///
    /// Never fused in software: `f32::mul_add` without the instruction is a slow library call.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

#[derive(Clone, Copy)]
struct Avx512;

impl Isa for Avx512 {
    const ROWS: usize = 8;
    const WIDE: bool = true;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

#[derive(Clone, Copy)]
struct Avx2;

impl Isa for Avx2 {
    const ROWS: usize = 6;
    const WIDE: bool = false;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

#[derive(Clone, Copy)]
struct Portable;

impl Isa for Portable {
    const ROWS: usize = 2;
    const WIDE: bool = false;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        // AArch64 always has the fused instruction.
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }
}

/// Work that is compiled once per instruction set.
pub trait Kernel {
    /// What it gives.
    type Output;

    /// Does the work. Implementations are `#[inline(always)]`, as is all they call in hot loops.
    fn run<I: Isa>(self) -> Self::Output;
}

/// Runs a kernel on [`instruction_set`].
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    match instruction_set() {
        // SAFETY: `instruction_set` gives only what `is_supported` found on this machine.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => unsafe { run_avx512(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => unsafe { run_avx2(kernel) },
        _ => kernel.run::<Portable>(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// The set that kernels use in this process: the best one here, or a lesser one that the environment
/// variable `CHAIRLIFT_CPU` names (`avx2`, `portable`).
pub fn instruction_set() -> InstructionSet {
    static CHOSEN: OnceLock<InstructionSet> = OnceLock::new();
    *CHOSEN.get_or_init(|| choose(std::env::var("CHAIRLIFT_CPU").ok().as_deref()))
}

fn choose(wanted: Option<&str>) -> InstructionSet {
    use InstructionSet::{Avx2, Avx512, Portable};
    let is_allowed = |set: InstructionSet| match wanted {
        Some("portable") => set == Portable,
        Some("avx2") => set != Avx512,
        _ => true,
    };
    [Avx512, Avx2, Portable]
        .into_iter()
        .find(|&set| is_allowed(set) && is_supported(set))
        .unwrap_or(Portable)
}

fn is_supported(set: InstructionSet) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        match set {
            InstructionSet::Avx512 => {
                avx2 && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            InstructionSet::Avx2 => avx2,
            InstructionSet::Portable => true,
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        set == InstructionSet::Portable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_can_only_lower_the_set() {
        assert_eq!(choose(Some("portable")), InstructionSet::Portable);
        assert_ne!(choose(Some("avx2")), InstructionSet::Avx512);
        assert_eq!(choose(Some("unknown")), choose(None));
        assert!(is_supported(choose(None)));
    }
}
