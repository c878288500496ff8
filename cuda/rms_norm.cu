// RMS normalisation (Zhang and Sennrich, 2019) of the residual stream, which it may add to first.
#include "chairlift/vec.cuh"

namespace chairlift {

constexpr int kNormThreads = 256;

// The sum over a block of kNormThreads, at every thread, in a fixed order. `partial` [8].
__device__ __forceinline__ float block_sum(float value, float* partial) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormThreads / 32; ++i) sum += partial[i];
  return sum;
}

// x += residual (if there is one, rounded to T); out = x / sqrt(mean(x^2) + eps) * weight.
//
// Grid (num_tokens), kNormThreads threads, hidden_size * sizeof(T) + 64 bytes of shared memory: a
// block norms a row, which it reads once. hidden_size * sizeof(T) is a multiple of 16. The bits of
// a row depend on that row alone.
template <typename T>
__global__ void __launch_bounds__(256)
    rms_norm(T* out,             // [num_tokens, hidden_size]; may be x if the stream is not needed
             T* x,               // [num_tokens, hidden_size]
             const T* residual,  // [num_tokens, hidden_size] or null
             const T* weight,    // [hidden_size]
             int hidden_size, float eps) {
  constexpr int kVec = Vec<T>::kSize;
  float* partial = reinterpret_cast<float*>(dynamic_shared());
  T* row = reinterpret_cast<T*>(dynamic_shared() + 64);  // a thread reads only what it wrote
  const long long start = static_cast<long long>(blockIdx.x) * hidden_size;

  float squares = 0.0f;
  for (int i = threadIdx.x * kVec; i < hidden_size; i += kNormThreads * kVec) {
    Vec<T> numbers = Vec<T>::load(x + start + i);
    float values[kVec];
    numbers.unpack(values);
    if (residual != nullptr) {
      float added[kVec];
      Vec<T>::load(residual + start + i).unpack(added);
#pragma unroll
      for (int j = 0; j < kVec; ++j) values[j] += added[j];
      numbers = Vec<T>::pack_from(values);
      numbers.store(x + start + i);
      numbers.unpack(values);  // what is normed is what the stream holds
    }
    numbers.store(row + i);
#pragma unroll
    for (int j = 0; j < kVec; ++j) squares += values[j] * values[j];
  }

  const float scale = rsqrtf(block_sum(squares, partial) / static_cast<float>(hidden_size) + eps);
  for (int i = threadIdx.x * kVec; i < hidden_size; i += kNormThreads * kVec) {
    float values[kVec], weights[kVec];
    Vec<T>::load(row + i).unpack(values);
    Vec<T>::load(weight + i).unpack(weights);
#pragma unroll
    for (int j = 0; j < kVec; ++j) values[j] = values[j] * scale * weights[j];
    Vec<T>::pack_from(values).store(out + start + i);
  }
}

}  // namespace chairlift
