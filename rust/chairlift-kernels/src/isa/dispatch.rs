//! Chooses the instruction set at run time.
//!
//! A kernel is a value that implements [`Kernel`]: its `run` is generic code, always inlined, and
//! [`dispatch`] holds one instance of it per instruction set. Inside an instance the compiler may use
//! that set's registers for everything that was inlined, so a kernel has one source.
//! Closures and functions that are not inlined would be compiled without the set: hot code has none.

#[cfg(target_arch = "x86_64")]
use crate::isa::{Avx2, Avx512, features};
use crate::{
    error::ArgumentError,
    isa::{Isa, Portable, set::InstructionSet},
};
use std::sync::OnceLock;

/// The only set that kernels have instances for beside the portable one; none in a release build, which has all
/// (`build.rs`).
const ONLY: Option<InstructionSet> = if cfg!(best_set = "avx512bf16") {
    Some(InstructionSet::Avx512Bf16)
} else if cfg!(best_set = "avx512vnni") {
    Some(InstructionSet::Avx512Vnni)
} else if cfg!(best_set = "avx512") {
    Some(InstructionSet::Avx512)
} else if cfg!(best_set = "avx2") {
    Some(InstructionSet::Avx2)
} else {
    None
};

/// Work that is compiled once per instruction set.
pub trait Kernel {
    /// What it gives.
    type Output;

    /// Whether it uses [`crate::isa::integers::Integers::add_dot`]: others have no instance for the sets that
    /// add but this, and run as [`InstructionSet::Avx512`].
    const USES_DOT: bool = false;

    /// Whether it uses [`Isa::add_pair_dot`] or [`Isa::round_block`]: others have no instance for the sets
    /// that add but these.
    const USES_BF16: bool = false;

    /// Does the work. Implementations are `#[inline(always)]`, as is all they call in hot loops.
    fn run<I: Isa>(self) -> Self::Output;
}

/// Runs a kernel on [`instruction_set`].
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        let set = instruction_set();
        // By constants first: what they rule out is not compiled.
        if const { has_instance::<K>(InstructionSet::Avx512Bf16) }
            && set.includes(InstructionSet::Avx512Bf16)
        {
            // SAFETY: `instruction_set` gives only what `is_supported` found on this machine.
            return unsafe { run_avx512bf16(kernel) };
        }
        if const { has_instance::<K>(InstructionSet::Avx512Vnni) }
            && set.includes(InstructionSet::Avx512Vnni)
        {
            // SAFETY: as above; a set has what those have that it includes.
            return unsafe { run_avx512vnni(kernel) };
        }
        if const { has_instance::<K>(InstructionSet::Avx512) }
            && set.includes(InstructionSet::Avx512)
        {
            // SAFETY: as above.
            return unsafe { run_avx512(kernel) };
        }
        if const { has_instance::<K>(InstructionSet::Avx2) } && set.includes(InstructionSet::Avx2) {
            // SAFETY: as above.
            return unsafe { run_avx2(kernel) };
        }
    }
    kernel.run::<Portable>()
}

/// Whether a kernel is compiled for a set.
#[cfg(target_arch = "x86_64")]
const fn has_instance<K: Kernel>(set: InstructionSet) -> bool {
    let best = match ONLY {
        Some(only) => only,
        None => set,
    };
    set as u8 == used_of::<K>(best) as u8
}

/// The set of a kernel's instance on a machine with a set.
#[cfg(target_arch = "x86_64")]
const fn used_of<K: Kernel>(set: InstructionSet) -> InstructionSet {
    use InstructionSet::{Amx, Avx2, Avx512, Avx512Bf16, Avx512Vnni, Portable};
    match set {
        Amx | Avx512Bf16 if K::USES_BF16 => Avx512Bf16,
        Amx | Avx512Bf16 | Avx512Vnni if K::USES_DOT => Avx512Vnni,
        Amx | Avx512Bf16 | Avx512Vnni | Avx512 => Avx512,
        Avx2 => Avx2,
        Portable => Portable,
    }
}

/// Runs a part of a kernel, on the set that the kernel runs on, in a function of its own: loops that need
/// all registers get them, and none goes to what the kernel wants to keep.
///
/// Call it with the `I` of the kernel's own `run` alone: no other crate can name a set but the portable one, and in this
/// crate [`dispatch`] alone names the others.
#[inline(always)]
pub(crate) fn noinline<I: Isa, K: Kernel>(part: K) -> K::Output {
    debug_assert!(is_supported(I::SET), "a set of this machine");
    // By constants, as in `dispatch`: a part has instances for the sets alone that its kernels have.
    #[cfg(target_arch = "x86_64")]
    if const { matches!(I::SET, InstructionSet::Avx512Bf16) } {
        // SAFETY: `I` is the set of the kernel that runs, which `dispatch` began because this machine has it.
        return unsafe { run_avx512bf16(part) };
    } else if const { matches!(I::SET, InstructionSet::Avx512Vnni) } {
        // SAFETY: as above.
        return unsafe { run_avx512vnni(part) };
    } else if const { matches!(I::SET, InstructionSet::Avx512) } {
        // SAFETY: as above.
        return unsafe { run_avx512(part) };
    } else if const { matches!(I::SET, InstructionSet::Avx2) } {
        // SAFETY: as above.
        return unsafe { run_avx2(part) };
    }
    run_portable(part)
}

#[inline(never)]
fn run_portable<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Portable>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512bf16,avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline(never)]
fn run_avx512bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<true, true>>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512vnni,avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline(never)]
fn run_avx512vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<true, false>>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
#[inline(never)]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<false, false>>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// The set that kernels use in this process: the best one here, or a lesser one that the environment
/// variable `CHAIRLIFT_CPU` names. A name that no set has is ignored with one line on standard error.
pub fn instruction_set() -> InstructionSet {
    static CHOSEN: OnceLock<InstructionSet> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let wanted = std::env::var_os("CHAIRLIFT_CPU").filter(|name| !name.is_empty());
        let wanted = wanted.map(|name| name.to_string_lossy().into_owned());
        choose(wanted.as_deref()).unwrap_or_else(|error| {
            let set = best_of(InstructionSet::ALL);
            eprintln!("chairlift: {error}; the kernels use {}", set.name());
            set
        })
    })
}

/// The best set here, up to the one that is wanted.
fn choose(wanted: Option<&str>) -> Result<InstructionSet, ArgumentError> {
    let sets = InstructionSet::ALL;
    let Some(wanted) = wanted else {
        return Ok(best_of(sets));
    };
    let Some(first) = sets.iter().position(|set| set.name() == wanted) else {
        let expected = format!("one of {}", sets.map(InstructionSet::name).join(", "));
        return Err(ArgumentError::new("CHAIRLIFT_CPU", expected, wanted));
    };
    Ok(best_of(sets.into_iter().skip(first)))
}

/// The first of some sets that this machine has.
fn best_of(sets: impl IntoIterator<Item = InstructionSet>) -> InstructionSet {
    let mut usable = sets.into_iter().filter(|&set| is_usable(set));
    usable.next().unwrap_or(InstructionSet::Portable)
}

/// Whether this machine has a set, and kernels have instances for it.
fn is_usable(set: InstructionSet) -> bool {
    let is_built = |only| set.includes(only) || set == InstructionSet::Portable;
    ONLY.is_none_or(is_built) && is_supported(set)
}

fn is_supported(set: InstructionSet) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        match set {
            InstructionSet::Amx => features::has_avx512bf16() && crate::isa::amx::is_supported(),
            InstructionSet::Avx512Bf16 => features::has_avx512bf16(),
            InstructionSet::Avx512Vnni => features::has_avx512vnni(),
            InstructionSet::Avx512 => features::has_avx512(),
            InstructionSet::Avx2 => features::has_avx2(),
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
        let rank = |set| InstructionSet::ALL.iter().position(|&other| other == set);
        let best = choose(None).expect("no name");
        assert!(is_usable(best));
        for set in InstructionSet::ALL {
            let chosen = choose(Some(set.name())).expect("a name");
            assert!(rank(chosen) >= rank(set).max(rank(best)));
            assert!(!is_usable(set) || chosen == set);
        }
        assert_eq!(choose(Some("portable")), Ok(InstructionSet::Portable));
    }

    #[test]
    fn a_name_that_no_set_has_is_an_error_that_lists_the_names() {
        for name in ["avx512typo", "AVX2", "avx2 ", ""] {
            let error = choose(Some(name)).expect_err("a typing error").to_string();
            let expected = "CHAIRLIFT_CPU: expected one of amx, avx512bf16, avx512vnni, avx512, avx2, portable, got ";
            assert_eq!(error, format!("{expected}{name}"));
        }
    }
}
