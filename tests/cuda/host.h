// As much of CUDA as the kernels use, on the host: a block's threads are real threads with a real
// barrier, blocks run one after the other. Slow and honest: it checks what a kernel computes.
#pragma once

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __shared__ static

using std::max;
using std::memcpy;
using std::min;

struct Index {
  unsigned x, y, z;
};

inline thread_local Index threadIdx, blockIdx;
inline std::barrier<>* block_barrier = nullptr;

inline float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

inline void __syncthreads() { block_barrier->arrive_and_wait(); }

// Runs kernel(params) on a grid of (x, y) blocks of num_threads threads.
template <typename Params>
void launch(void (*kernel)(Params), Index grid, unsigned num_threads, Params params) {
  std::barrier<> barrier(num_threads);
  block_barrier = &barrier;
  std::vector<std::jthread> threads;
  for (unsigned thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([=] {
      threadIdx = {thread, 0, 0};
      for (unsigned y = 0; y < grid.y; ++y) {
        for (unsigned x = 0; x < grid.x; ++x) {
          blockIdx = {x, y, 0};
          kernel(params);
          __syncthreads();  // the next block uses the same shared memory
        }
      }
    });
  }
}
