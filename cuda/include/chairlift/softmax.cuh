// Online softmax as an algebra: the same names in rust/chairlift-kernels/src/softmax.rs and in
// python/chairlift/attention/reference.py, so that the three read side by side.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); the split and merge
// of Flash-Decoding (2023); the state as a value with operations from FlashInfer's state.cuh.
#pragma once

namespace chairlift {

// Attention of one query over the keys seen so far:
//
//   m = max(score)     d = sum(exp(score - m))     o = sum(exp(score - m) * value)
//
// `merge` is associative up to rounding and `empty` is its neutral element, so keys may be cut into
// tiles. Bits depend on the cut: kernels cut at absolute positions and merge in a fixed order.
template <int kHeadDim>
struct SoftmaxState {
  float m;
  float d;
  float o[kHeadDim];

  // No key seen. A function and not a constructor: `__shared__` variables may have none.
  static __device__ SoftmaxState empty() {
    SoftmaxState state;
    state.m = __int_as_float(0xff800000);  // -inf
    state.d = 0.0f;
    for (int i = 0; i < kHeadDim; ++i) state.o[i] = 0.0f;
    return state;
  }

  // Adds one key: its finite score and its value [kHeadDim].
  template <typename T>
  __device__ void update(float score, const T* value) {
    const float m_new = fmaxf(m, score);
    const float scale = expf(m - m_new);  // 0 for the first key, since m is -inf
    const float weight = expf(score - m_new);
    m = m_new;
    d = d * scale + weight;
    for (int i = 0; i < kHeadDim; ++i) o[i] = o[i] * scale + weight * float(value[i]);
  }

  // Adds all the keys of another state.
  __device__ void merge(const SoftmaxState& other) {
    if (other.d == 0.0f) return;  // exp(-inf - -inf) would be NaN when both are empty
    const float m_new = fmaxf(m, other.m);
    const float scale = expf(m - m_new);
    const float scale_other = expf(other.m - m_new);
    m = m_new;
    d = d * scale + other.d * scale_other;
    for (int i = 0; i < kHeadDim; ++i) o[i] = o[i] * scale + other.o[i] * scale_other;
  }

  // Turns o into the weighted mean of the values; zero if there was no key.
  __device__ void normalize() {
    const float inverse = d == 0.0f ? 0.0f : 1.0f / d;
    for (int i = 0; i < kHeadDim; ++i) o[i] *= inverse;
  }
};

}  // namespace chairlift
