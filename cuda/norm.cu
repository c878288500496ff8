// Norms of the residual stream, which they may add to first, and of parts of a row: RMS norm (Zhang
// and Sennrich, 2019) and layer norm (Ba et al., 2016); and a gate with a norm behind it, as
// Mamba-2 has them.
#include "chairlift/activation.cuh"
#include "chairlift/vec.cuh"

namespace chairlift {

constexpr int kNormThreads = 256;
constexpr int kNormWarps = kNormThreads / 32;

// The sum over a block of kNormThreads, at every thread, in a fixed order. `partial` [kNormWarps].
__device__ __forceinline__ float block_sum(float value, float* partial) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  value = warp_sum(value);
  if (lane == 0) partial[warp] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormWarps; ++i) sum += partial[i];
  return sum;
}

// x += residual (if there is one, rounded to T); out = x / sqrt(mean(x^2) + eps) * (weight +
// offset) + bias, where a layer norm first subtracts the mean of x.
//
// Grid (num_tokens, num_groups), kNormThreads threads, size * sizeof(T) + 64 bytes of shared
// memory: a block norms one group of a row, which it reads once. Size and strides are multiples of
// 16 bytes. The bits of a row depend on that row alone.
template <typename T>
__global__ void __launch_bounds__(256)
    norm(T* out,                // [num_tokens, num_groups * size], as the next two; may be x
         T* x,                  // what is normed
         const T* residual,     // or null
         const T* weight,       // [size], of every group
         const T* bias,         // [size] or null
         long long out_stride,  // elements from token to token
         long long x_stride, long long residual_stride, int size, float eps, float offset,
         int is_layer_norm) {
  constexpr int kVec = Vec<T>::kSize;
  float* partial = reinterpret_cast<float*>(dynamic_shared());  // [2][kNormWarps]
  T* row = reinterpret_cast<T*>(dynamic_shared() + 64);         // a thread reads only what it wrote
  const long long token = blockIdx.x;
  const int group = blockIdx.y * size;
  T* from = x + token * x_stride + group;

  float sum = 0.0f, squares = 0.0f;
  for (int i = threadIdx.x * kVec; i < size; i += kNormThreads * kVec) {
    Vec<T> numbers = Vec<T>::load(from + i);
    float values[kVec];
    numbers.unpack(values);
    if (residual != nullptr) {
      float added[kVec];
      Vec<T>::load(residual + token * residual_stride + group + i).unpack(added);
#pragma unroll
      for (int j = 0; j < kVec; ++j) values[j] += added[j];
      numbers = Vec<T>::pack_from(values);
      numbers.store(from + i);
      numbers.unpack(values);  // what is normed is what the stream holds
    }
    numbers.store(row + i);
#pragma unroll
    for (int j = 0; j < kVec; ++j) sum += values[j], squares += values[j] * values[j];
  }

  const float count = static_cast<float>(size);
  float mean = 0.0f;
  if (is_layer_norm) {
    mean = block_sum(sum, partial) / count;
    squares = 0.0f;
    for (int i = threadIdx.x * kVec; i < size; i += kNormThreads * kVec) {
      float values[kVec];
      Vec<T>::load(row + i).unpack(values);
#pragma unroll
      for (int j = 0; j < kVec; ++j) squares += (values[j] - mean) * (values[j] - mean);
    }
  }
  const float scale = rsqrtf(block_sum(squares, partial + kNormWarps) / count + eps);
  for (int i = threadIdx.x * kVec; i < size; i += kNormThreads * kVec) {
    float values[kVec], weights[kVec], biases[kVec] = {};
    Vec<T>::load(row + i).unpack(values);
    Vec<T>::load(weight + i).unpack(weights);
    if (bias != nullptr) Vec<T>::load(bias + i).unpack(biases);
#pragma unroll
    for (int j = 0; j < kVec; ++j)
      values[j] = (values[j] - mean) * scale * (weights[j] + offset) + biases[j];
    Vec<T>::pack_from(values).store(out + token * out_stride + group + i);
  }
}

// x = y / sqrt(mean(y^2) + eps) * weight with y = x silu(gate), or x = y without a weight.
//
// Grid (num_tokens, num_groups), kNormThreads threads, 32 bytes of shared memory: a block norms one
// group of a row. Size and strides are multiples of 16 bytes. One rounding at the end; the bits of
// a row depend on that row alone.
template <typename T>
__global__ void __launch_bounds__(256)
    gated_norm(T* x,                 // [num_tokens, num_groups * size]
               const T* gate,        // likewise
               const float* weight,  // [num_groups * size] or null
               long long x_stride,   // elements from token to token
               long long gate_stride, int size, float eps) {
  constexpr int kVec = Vec<T>::kSize;
  const long long token = blockIdx.x;
  const int group = blockIdx.y * size;
  T* own = x + token * x_stride + group;
  const T* gates = gate + token * gate_stride + group;

  const auto gated = [&](int i, float (&values)[kVec]) {
    float factors[kVec];
    Vec<T>::load(own + i).unpack(values);
    Vec<T>::load(gates + i).unpack(factors);
#pragma unroll
    for (int j = 0; j < kVec; ++j) values[j] *= activated(factors[j], kSilu);
  };

  float scale = 1.0f;
  if (weight != nullptr) {
    float squares = 0.0f;
    for (int i = threadIdx.x * kVec; i < size; i += kNormThreads * kVec) {
      float values[kVec];
      gated(i, values);
#pragma unroll
      for (int j = 0; j < kVec; ++j) squares += values[j] * values[j];
    }
    float* partial = reinterpret_cast<float*>(dynamic_shared());  // [kNormWarps]
    scale = rsqrtf(block_sum(squares, partial) / static_cast<float>(size) + eps);
  }
  for (int i = threadIdx.x * kVec; i < size; i += kNormThreads * kVec) {
    float values[kVec];
    gated(i, values);
    if (weight != nullptr) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) values[j] = values[j] * scale * weight[group + i + j];
    }
    Vec<T>::pack_from(values).store(own + i);
  }
}

}  // namespace chairlift
