// The exponential of the CPU's kernels, bit for bit: where it decides a choice, both choose alike.
#pragma once

#include "chairlift/mma.cuh"

namespace chairlift {

// e^x within 2 units in the last place; 0 far below, infinity far above, NaN for NaN.
//
// x = n ln 2 + r; a polynomial gives e^r (Cephes, `expf`), and the exponent bits are 2^n. As
// isa/exp.rs has it: `__fmul_rn` keeps the compiler from fusing what is rounded there.
__device__ __forceinline__ float exp_as_on_cpu(float x) {
  constexpr float kLow = -87.33654f, kHigh = 88.37626f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float bounded = x > kHigh ? kHigh : x;
  const float t = bounded < kLow ? kLow : bounded;
  const float shifted = fmaf(t, 1.44269504088896340736f, kRound);
  const float n = shifted - kRound;
  float r = fmaf(n, -0.6933594f, t);
  r = fmaf(n, 2.1219444e-4f, r);
  float p = fmaf(1.9875692e-4f, r, 1.3982e-3f);
  p = fmaf(p, r, 8.333452e-3f);
  p = fmaf(p, r, 4.1665796e-2f);
  p = fmaf(p, r, 1.6666665e-1f);
  p = fmaf(p, r, 5.0e-1f);
  p = fmaf(p, __fmul_rn(r, r), r) + 1.0f;
  const float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
  const float y = __fmul_rn(p, power);
  return x > kHigh ? __uint_as_float(0x7f800000u) : bounded < kLow ? 0.0f : y;
}

}  // namespace chairlift
