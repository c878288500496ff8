// Copies the recurrent states of whole rows: to and from snapshots, and between rows.
#include "chairlift/vec.cuh"

namespace chairlift {

constexpr int kCopyStateThreads = 256;
constexpr int kCopyStateVecs = 16;  // of a thread

// pool[to] = pool[from] for each pair (to, from).
//
// Grid (num_pairs, ceil(row_size / (4 * 256 * 16))), kCopyStateThreads threads, no shared memory: a
// block copies 64 KiB. A row is written once at most, and none is read and written in one call.
__global__ void __launch_bounds__(256)
    copy_states(float* pool,       // [., row_size]: what all layers keep of a row
                const int* pairs,  // [num_pairs, 2]: target, source
                int row_size) {    // a multiple of 4
  float* to = pool + static_cast<long long>(pairs[2 * blockIdx.x]) * row_size;
  const float* from = pool + static_cast<long long>(pairs[2 * blockIdx.x + 1]) * row_size;
  const int begin = blockIdx.y * kCopyStateThreads * kCopyStateVecs + threadIdx.x;
#pragma unroll 4
  for (int i = 0; i < kCopyStateVecs; ++i) {
    const int place = 4 * (begin + i * kCopyStateThreads);
    if (place < row_size) Vec<float>::load(from + place).store(to + place);
  }
}

}  // namespace chairlift
