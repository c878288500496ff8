//! Registers of numbers, rounded to `bf16` as [`Element::from_f32`](crate::isa::element::Element::from_f32) rounds them.
//!
//! By integers, ties to even, and NaN becomes quiet. The instruction of AVX-512 BF16 takes subnormal numbers for zero.

use super::UPPER_HALVES;
use std::arch::x86_64::{
    __m256, __m256i, __m512, __m512i, _CMP_UNORD_Q, _mm256_add_epi32, _mm256_and_si256,
    _mm256_blendv_ps, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_or_si256,
    _mm256_packus_epi32, _mm256_permute4x64_epi64, _mm256_set1_epi32, _mm256_srli_epi32,
    _mm512_add_epi32, _mm512_and_si512, _mm512_castps_si512, _mm512_cmp_ps_mask,
    _mm512_mask_or_epi32, _mm512_permutex2var_epi16, _mm512_set1_epi32, _mm512_srli_epi32,
};
use std::mem::transmute;

/// 16 numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn round_16([low, high]: [__m256; 2]) -> __m256i {
    // Packs halves of 128 bits: [low 0..4, high 0..4, low 4..8, high 4..8].
    let words = _mm256_packus_epi32(rounded_8(low), rounded_8(high));
    _mm256_permute4x64_epi64::<0b11_01_10_00>(words)
}

/// 32 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn round_32([low, high]: [__m512; 2]) -> __m512i {
    // SAFETY: 32 halves are as long as a register.
    let upper = unsafe { transmute::<[u16; 32], __m512i>(UPPER_HALVES) };
    _mm512_permutex2var_epi16(rounded_16(low), upper, rounded_16(high))
}

/// In the low halves of words.
#[inline]
#[target_feature(enable = "avx2")]
fn rounded_8(numbers: __m256) -> __m256i {
    let bits = _mm256_castps_si256(numbers);
    let is_odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
    let half = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff));
    let rounded = _mm256_castsi256_ps(_mm256_add_epi32(bits, half));
    let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
    let is_nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(numbers, numbers);
    let chosen = _mm256_blendv_ps(rounded, _mm256_castsi256_ps(quiet), is_nan);
    _mm256_srli_epi32::<16>(_mm256_castps_si256(chosen))
}

/// In the upper halves of words; in the lower ones is what is left.
#[inline]
#[target_feature(enable = "avx512f")]
fn rounded_16(numbers: __m512) -> __m512i {
    let bits = _mm512_castps_si512(numbers);
    let is_odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let half = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff));
    let rounded = _mm512_add_epi32(bits, half);
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(numbers, numbers);
    _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x0040_0000))
}
