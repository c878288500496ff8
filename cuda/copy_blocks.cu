// Copies whole KV blocks of all layers, inside a pool or between pools.
#include "chairlift/vec.cuh"

namespace chairlift {

constexpr int kCopyThreads = 128;

// destination[part, to] = source[part, from] for each pair (from, to) and each part of the pools.
//
// Any grid, kCopyThreads threads, no shared memory: a few blocks of threads keep a bus busy and
// leave the processors to other work. A pool [num_layers, 2, num_blocks, num_kv_heads, kBlockSize,
// kHeadDim] is num_layers * 2 parts; one of the two pools may be pinned memory of the host (swap).
// No block may be read and written in one call.
__global__ void __launch_bounds__(128)
    copy_blocks(unsigned char* destination, const unsigned char* source,
                const int* pairs,  // [num_pairs, 2]: source block, destination block
                int num_pairs, int num_parts,
                long long destination_stride,  // bytes from part to part
                long long source_stride,
                int block_bytes) {  // of one part; a multiple of 16
  for (int item = blockIdx.x; item < num_pairs * num_parts; item += gridDim.x) {
    const int part = item / num_pairs, pair = item % num_pairs;
    const long long from = pairs[2 * pair], to = pairs[2 * pair + 1];
    const unsigned char* read = source + part * source_stride + from * block_bytes;
    unsigned char* write = destination + part * destination_stride + to * block_bytes;
#pragma unroll 4
    for (int i = threadIdx.x * 16; i < block_bytes; i += kCopyThreads * 16)
      Vec<unsigned char>::load(read + i).store(write + i);
  }
}

}  // namespace chairlift
