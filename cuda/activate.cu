// Activations, alone or as the gate of a feed-forward (Shazeer, 2020).
#include "chairlift/activation.cuh"
#include "chairlift/vec.cuh"

namespace chairlift {

constexpr int kActivateThreads = 256;

// out = activation(gate), times up if there is one.
//
// Grid (num_tokens, ceil(size / (256 * 16 / sizeof(T)))), kActivateThreads threads, no shared
// memory: a thread makes 16 bytes. Size and strides are multiples of 16 bytes. `out` may be an
// input.
template <typename T>
__global__ void __launch_bounds__(256)
    activate(T* out,                // [num_tokens, size], as the others
             const T* gate,         // what the activation is taken of
             const T* up,           // or null
             long long out_stride,  // elements from token to token
             long long gate_stride, long long up_stride, int size, int activation) {
  constexpr int kVec = Vec<T>::kSize;
  const int i = (blockIdx.y * kActivateThreads + threadIdx.x) * kVec;
  if (i >= size) return;
  const long long token = blockIdx.x;
  float values[kVec], factors[kVec];
  Vec<T>::load(gate + token * gate_stride + i).unpack(values);
#pragma unroll
  for (int j = 0; j < kVec; ++j) values[j] = activated(values[j], activation);
  if (up != nullptr) {
    Vec<T>::load(up + token * up_stride + i).unpack(factors);
#pragma unroll
    for (int j = 0; j < kVec; ++j) values[j] *= factors[j];
  }
  Vec<T>::pack_from(values).store(out + token * out_stride + i);
}

}  // namespace chairlift
