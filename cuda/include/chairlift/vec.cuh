// Element types as storage, and 16 bytes of them at a time; arithmetic is float.
//
// Needs no CUDA header, so that NVRTC compiles it with no toolkit.
#pragma once

#include "chairlift/mma.cuh"

namespace chairlift {

// The upper half of a float.
struct bfloat16 {
  unsigned short bits;

  __device__ operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }

  // To the nearest, ties to even; NaN stays NaN.
  static __device__ bfloat16 from(float value) {
    const unsigned wide = __float_as_uint(value);
    if (value != value) return {static_cast<unsigned short>((wide >> 16) | 0x40)};
    return {static_cast<unsigned short>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16)};
  }
};

// IEEE binary16.
struct float16 {
  unsigned short bits;

  __device__ operator float() const { return half_to_float(bits); }
  static __device__ float16 from(float value) { return {float_to_half(value)}; }
};

// One sign, four exponent and three mantissa bits; the largest number is 448, there is no infinity
// (Micikevicius et al., "FP8 formats for deep learning", 2022). For keys and values alone.
struct float8_e4m3 {
  unsigned char bits;

  // To the nearest, ties to even, and to 448 beyond it; NaN stays NaN.
  static __device__ float8_e4m3 from(float value) {
    const unsigned wide = __float_as_uint(value);
    const unsigned sign = wide >> 24 & 0x80;
    const float magnitude = fabsf(value);
    if (value != value) return {static_cast<unsigned char>(sign | 0x7f)};
    if (magnitude >= 448.0f) return {static_cast<unsigned char>(sign | 0x7e)};
    if (magnitude < 0.015625f)  // below 2^-6 the numbers are multiples of 2^-9
      return {static_cast<unsigned char>(sign | static_cast<unsigned>(rintf(magnitude * 512.0f)))};
    const unsigned bits = wide & 0x7fffffff;
    const unsigned rounded = (bits + 0x7ffff + (bits >> 20 & 1)) >> 20;  // 8 exponent bits, 3 more
    return {static_cast<unsigned char>(sign | (rounded - (120u << 3)))};
  }
};

// Rounds a float to the element type T.
template <typename T>
__device__ __forceinline__ T round_to(float value) {
  return T::from(value);
}

template <>
__device__ __forceinline__ float round_to<float>(float value) {
  return value;
}

// The two float8_e4m3 in the upper bytes of each half, as a pair of T.
//
//   float8 in a half   s eeee mmm 0000 0000        moved   bfloat16  s 0000 eeee mmm 0000
//                                                          float16   s 0 eeee mmm 000 0000
//
// Read with T's larger bias, the moved bits are the number times a power of two, subnormal numbers
// too; one multiplication corrects it. A float8 NaN becomes a number: only a broken model
// stores one, which then shows in the logits of that token alone.
template <typename T>
__device__ __forceinline__ unsigned widen_pair(unsigned upper_bytes);

template <>
__device__ __forceinline__ unsigned widen_pair<bfloat16>(unsigned upper_bytes) {
  const unsigned moved = (upper_bytes & 0x80008000u) | (upper_bytes & 0x7f007f00u) >> 4;
  return multiply_pairs<bfloat16>(moved, 0x7b807b80u);  // 2^120
}

template <>
__device__ __forceinline__ unsigned widen_pair<float16>(unsigned upper_bytes) {
  const unsigned moved = (upper_bytes & 0x80008000u) | (upper_bytes & 0x7f007f00u) >> 1;
  return multiply_pairs<float16>(moved, 0x5c005c00u);  // 2^8
}

// As many elements as 16 bytes hold, moved by one instruction.
template <typename T>
struct Vec {
  static constexpr int kSize = 16 / sizeof(T);
  uint4 words;

  static __device__ __forceinline__ Vec load(const T* from) {
    return {*reinterpret_cast<const uint4*>(from)};
  }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<uint4*>(to) = words; }

  __device__ __forceinline__ void unpack(float (&values)[kSize]) const {
    const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if constexpr (sizeof(T) == 4) {
        values[i] = __uint_as_float(word[i]);
      } else {
        values[i] = float(T{static_cast<unsigned short>(word[i / 2] >> (16 * (i % 2)))});
      }
    }
  }

  static __device__ __forceinline__ Vec pack_from(const float (&values)[kSize]) {
    unsigned word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        word[i] = __float_as_uint(values[i]);
      } else {
        word[i] = pack<T>(values[2 * i], values[2 * i + 1]);
      }
    }
    return {{word[0], word[1], word[2], word[3]}};
  }
};

// The sum over the lanes of a warp, at every lane, in a fixed order of lanes.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(0xffffffffu, value, bits);
  return value;
}

}  // namespace chairlift
