// The gate of SwiGLU (Shazeer, 2020).
#include "chairlift/vec.cuh"

namespace chairlift {

constexpr int kSiluThreads = 256;

// out = silu(gate) * up, where silu(z) = z / (1 + e^-z).
//
// Grid (num_tokens, ceil(intermediate_size / (256 * 16 / sizeof(T)))), kSiluThreads threads, no
// shared memory: a thread makes 16 bytes. intermediate_size * sizeof(T) is a multiple of 16.
template <typename T>
__global__ void __launch_bounds__(256)
    silu_mul(T* out,            // [num_tokens, intermediate_size]
             const T* gate_up,  // [num_tokens, 2 * intermediate_size]: gate, then up
             int intermediate_size) {
  constexpr int kVec = Vec<T>::kSize;
  const int i = (blockIdx.y * kSiluThreads + threadIdx.x) * kVec;
  if (i >= intermediate_size) return;
  const long long token = blockIdx.x;
  const T* row = gate_up + token * 2 * intermediate_size;
  float gate[kVec], up[kVec];
  Vec<T>::load(row + i).unpack(gate);
  Vec<T>::load(row + intermediate_size + i).unpack(up);
#pragma unroll
  for (int j = 0; j < kVec; ++j) up[j] *= gate[j] / (1.0f + expf(-gate[j]));
  Vec<T>::pack_from(up).store(out + token * intermediate_size + i);
}

}  // namespace chairlift
