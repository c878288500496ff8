//! The instruction sets that kernels are compiled for.

/// Instruction sets that kernels are compiled for, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// [`Self::Avx512Bf16`] and products of tiles of pairs of `bf16`.
    ///
    /// Tiles are for layers alone ([`crate::isa::amx`]); all else runs as [`Self::Avx512Bf16`].
    Amx,
    /// [`Self::Avx512Vnni`] and dot products of pairs of `bf16`.
    Avx512Bf16,
    /// [`Self::Avx512`] and dot products of bytes.
    Avx512Vnni,
    /// x86-64 with 512-bit registers.
    Avx512,
    /// x86-64 with 256-bit registers, fused multiply-add and conversions of f16.
    Avx2,
    /// Whatever the build targets.
    Portable,
}

impl InstructionSet {
    pub(crate) const ALL: [Self; 6] = [
        Self::Amx,
        Self::Avx512Bf16,
        Self::Avx512Vnni,
        Self::Avx512,
        Self::Avx2,
        Self::Portable,
    ];

    /// That of an x86-64 with 512-bit registers.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn avx512(has_vnni: bool, has_bf16: bool) -> Self {
        match (has_vnni, has_bf16) {
            (true, true) => Self::Avx512Bf16,
            (true, false) => Self::Avx512Vnni,
            _ => Self::Avx512,
        }
    }

    /// The name that `CHAIRLIFT_CPU` and `cpu_features()` use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 => "avx512bf16",
            Self::Avx512Vnni => "avx512vnni",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Portable => "portable",
        }
    }

    /// Whether this set has all that another has.
    pub fn includes(self, other: Self) -> bool {
        self <= other
    }
}
