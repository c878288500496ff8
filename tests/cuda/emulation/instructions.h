// The instructions of chairlift/mma.cuh on the host: what each computes, and what it promises when.
#pragma once

#include "cuda.h"

namespace emulation {

// The block's dynamic shared memory: NaN until it is written, canaries after its end.
unsigned char* dynamic_shared();

// cp.async: the destination holds NaN from the issue on, and the bytes from the wait on. So a read
// before the wait, and an issue before the last reader of the old bytes is done, both show.
void copy_async(void* shared, const void* global, bool is_valid);
void commit_copies();
void wait_copies(int num_left);

// A lane reads the row that it names as it arrives, not when the others are there.
void load_matrices(std::uint32_t (&r)[4], const void* row, bool is_transposed);

std::uint32_t transpose_matrix(std::uint32_t pair);

enum class Element { bfloat16, float16 };
void multiply_accumulate(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1, Element element);

float from_half(std::uint16_t bits);
std::uint16_t to_half(float value);
float from_bfloat(std::uint16_t bits);
std::uint16_t to_bfloat(float value);

}  // namespace emulation

namespace chairlift {

struct bfloat16;
struct float16;

namespace emulated {
template <typename T>
constexpr emulation::Element element_of = emulation::Element::bfloat16;
template <>
inline constexpr emulation::Element element_of<float16> = emulation::Element::float16;

template <typename T>
std::uint16_t round_bits(float value) {
  return element_of<T> == emulation::Element::float16 ? emulation::to_half(value)
                                                      : emulation::to_bfloat(value);
}
template <typename T>
float widen_bits(std::uint32_t bits) {
  const auto half = static_cast<std::uint16_t>(bits);
  return element_of<T> == emulation::Element::float16 ? emulation::from_half(half)
                                                      : emulation::from_bfloat(half);
}
}  // namespace emulated

inline unsigned char* dynamic_shared() { return emulation::dynamic_shared(); }
inline float exp2_approximate(float x) { return std::exp2(x); }
inline float reciprocal_approximate(float x) { return 1.0f / x; }
inline float half_to_float(unsigned short bits) { return emulation::from_half(bits); }
inline unsigned short float_to_half(float value) { return emulation::to_half(value); }

template <typename T>
unsigned pack(float low, float high) {
  return emulated::round_bits<T>(low) | static_cast<unsigned>(emulated::round_bits<T>(high)) << 16;
}

template <typename T>
unsigned multiply_pairs(unsigned x, unsigned y) {
  return pack<T>(emulated::widen_bits<T>(x) * emulated::widen_bits<T>(y),
                 emulated::widen_bits<T>(x >> 16) * emulated::widen_bits<T>(y >> 16));
}

inline void copy_async(void* shared, const void* global, bool is_valid) {
  emulation::copy_async(shared, global, is_valid);
}
inline void commit_copies() { emulation::commit_copies(); }
template <int kLeft>
void wait_copies() {
  emulation::wait_copies(kLeft);
}

inline void load_matrices(unsigned (&r)[4], const void* row) {
  emulation::load_matrices(r, row, false);
}
inline void load_matrices_transposed(unsigned (&r)[4], const void* row) {
  emulation::load_matrices(r, row, true);
}

inline unsigned transpose_matrix(unsigned pair) { return emulation::transpose_matrix(pair); }

template <typename T>
void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulation::multiply_accumulate(c, a, b0, b1, emulated::element_of<T>);
}

}  // namespace chairlift
