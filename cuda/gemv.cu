// A linear layer for a few rows, at the memory's speed: cuBLAS has tiles of 8 rows and more, and
// took two to eight times as long as the weights do from memory (docs/benchmarks/gpu.md).
#include "chairlift/vec.cuh"

namespace chairlift {

constexpr int kGemvWarps = 4;
// Pieces of 512 bytes of a weight row that are on their way to a warp at a time.
constexpr int kGemvPieces = 8;

// out = x W^T + bias: a warp has one output of all rows, so that it reads a row of W once. A lane
// adds its inputs in their order, and the lanes are added in a fixed order: the bits of a row
// depend neither on kRows nor on the other rows.
//
// Grid (ceil(num_outputs / 4)), 128 threads, no shared memory. `depth`, the inputs, and x_stride
// are multiples of 8, and pointers of 16 bytes.
template <typename T, int kRows>
__global__ void __launch_bounds__(128)
    gemv(T* out,            // [kRows, num_outputs]
         const T* x,        // [kRows, depth]
         const T* weights,  // [num_outputs, depth]
         const T* bias,     // [num_outputs] or null
         long long out_stride, long long x_stride, int num_outputs, int depth) {
  constexpr int kVec = Vec<T>::kSize;
  constexpr int kStep = 32 * kVec;  // inputs of a piece
  const int output = blockIdx.x * kGemvWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (output >= num_outputs) return;
  const T* row = weights + static_cast<long long>(output) * depth;

  float sums[kRows] = {};
  for (int first = lane * kVec; first < depth; first += kGemvPieces * kStep) {
    uint4 words[kGemvPieces];
#pragma unroll
    for (int p = 0; p < kGemvPieces; ++p) {
      const int at = first + p * kStep;
      words[p] = at < depth ? __ldcg(reinterpret_cast<const uint4*>(row + at)) : uint4{};
    }
#pragma unroll
    for (int p = 0; p < kGemvPieces; ++p) {
      const int at = first + p * kStep;
      if (at >= depth) break;
      float factors[kVec];
      Vec<T>{words[p]}.unpack(factors);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float values[kVec];
        Vec<T>::load(x + r * x_stride + at).unpack(values);
#pragma unroll
        for (int j = 0; j < kVec; ++j) sums[r] = fmaf(factors[j], values[j], sums[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float sum = warp_sum(sums[r]);
    if (lane == r)
      out[r * out_stride + output] = round_to<T>(bias == nullptr ? sum : sum + float(bias[output]));
  }
}

}  // namespace chairlift
