// Online softmax as an algebra: the same names in rust/chairlift-kernels/src/attention/softmax.rs
// and in tests/attention/reference.py, so that the three read side by side.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); the split and merge
// of Flash-Decoding (2023); the state as a value with operations from FlashInfer's state.cuh.
// Scores here are to the base 2: log2(e) is folded into their scale, which does not change the
// result and saves a multiplication per exponential.
#pragma once

#include "chairlift/mma.cuh"

namespace chairlift {

constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// Attention of one query over the keys seen so far, or kWidth coordinates of it:
//
//   m = max(score)     d = sum(2^(score - m))     o = sum(2^(score - m) * value)
//
// `merge` is associative up to rounding and `empty` is its neutral element, so keys may be cut into
// tiles. Bits depend on the cut: kernels cut at absolute positions and merge in a fixed order.
template <int kWidth>
struct SoftmaxState {
  float m;
  float d;
  float o[kWidth];

  // No key seen.
  static __device__ __forceinline__ SoftmaxState empty() { return {minus_infinity(), 0.0f, {}}; }

  // One key whose value is zero: it has a weight and adds nothing.
  static __device__ __forceinline__ SoftmaxState sink(float score) { return {score, 1.0f, {}}; }

  // Adds all the keys of another state.
  __device__ __forceinline__ void merge(const SoftmaxState& other) {
    const float m_new = fmaxf(m, other.m);
    const float base = m_new == minus_infinity() ? 0.0f : m_new;  // -inf - -inf would be NaN
    const float scale = exp2_approximate(m - base);
    const float scale_other = exp2_approximate(other.m - base);
    m = m_new;
    d = d * scale + other.d * scale_other;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) o[i] = o[i] * scale + other.o[i] * scale_other;
  }

  // Adds all the keys of several states, in order; their weights do not wait for one another.
  template <int kCount>
  __device__ __forceinline__ void merge(const SoftmaxState (&others)[kCount]) {
    float m_new = m;
#pragma unroll
    for (int j = 0; j < kCount; ++j) m_new = fmaxf(m_new, others[j].m);
    const float base = m_new == minus_infinity() ? 0.0f : m_new;  // -inf - -inf would be NaN
    const float scale = exp2_approximate(m - base);
    m = m_new;
    d *= scale;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) o[i] *= scale;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float weight = exp2_approximate(others[j].m - base);
      d += others[j].d * weight;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) o[i] += others[j].o[i] * weight;
    }
  }

  // Turns o into the weighted mean of the values; zero if there was no key.
  __device__ __forceinline__ void normalize() {
    const float inverse = d == 0.0f ? 0.0f : 1.0f / d;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) o[i] *= inverse;
  }
};

// The states of 16 queries, spread over a warp as `mma` leaves its results (mma.cuh): lane
// 4 g + t holds queries g and g + 8, and for each the part of d and of o of its columns.
template <int kHeadDim>
struct SoftmaxFragment {
  float m[2];
  float d[2];  // of this lane's keys alone, until `share`
  float o[kHeadDim / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < 2; ++r) m[r] = minus_infinity(), d[r] = 0.0f;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0.0f;
  }

  // Adds 8 * kTiles keys: turns their scores, still to be multiplied by `factor` > 0, into weights.
  // The caller then adds weights * values to o. A key that a query does not see has score -inf.
  template <int kTiles>
  __device__ __forceinline__ void update(float (&scores)[kTiles][4], float factor) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = fmaxf(scores[0][2 * r], scores[0][2 * r + 1]);
#pragma unroll
      for (int j = 1; j < kTiles; ++j)
        largest = fmaxf(largest, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      const float m_new = fmaxf(m[r], largest * factor);
      const float base = m_new == minus_infinity() ? 0.0f : m_new;  // no key seen yet
      const float scale = exp2_approximate(m[r] - base);
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          scores[j][i] = exp2_approximate(fmaf(scores[j][i], factor, -base));
          sum += scores[j][i];
        }
      }
      m[r] = m_new;
      d[r] = d[r] * scale + sum;
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; ++n) o[n][2 * r] *= scale, o[n][2 * r + 1] *= scale;
    }
  }

  // Sums d over lanes: every lane has the whole d of its queries.
  __device__ __forceinline__ void share() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      d[r] += __shfl_xor_sync(0xffffffffu, d[r], 1);
      d[r] += __shfl_xor_sync(0xffffffffu, d[r], 2);
    }
  }
};

// softcap * tanh(score / softcap), where tanh z = 1 - 2 / (e^2z + 1).
__device__ __forceinline__ float soft_cap(float score, float softcap) {
  const float e = exp2_approximate(score * (2.0f * kLog2E / softcap));
  return softcap - 2.0f * softcap * reciprocal_approximate(e + 1.0f);
}

}  // namespace chairlift
