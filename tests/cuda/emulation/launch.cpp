#include "launch.h"

#include <cstring>

#include "cuda.h"

namespace {

bool is_reversed = false;
std::string failure;

const emulation::Kernel* find(const char* name) {
  const emulation::Kernel* kernel = emulation::registered();
  while (kernel != nullptr && std::strcmp(kernel->name, name) != 0) kernel = kernel->next;
  return kernel;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Why the last launch failed.
EXPORT const char* chairlift_error() { return failure.c_str(); }

// A letter per argument of a kernel (launch.h), or null.
EXPORT const char* chairlift_signature(const char* name) {
  const emulation::Kernel* kernel = find(name);
  return kernel == nullptr ? nullptr : kernel->signature;
}

// Blocks and threads take turns in order, or in reverse: a kernel's results must not know.
EXPORT void chairlift_reverse(int reversed) { is_reversed = reversed != 0; }

// The shape of cuLaunchKernel; 0 if the kernel ran.
EXPORT int chairlift_launch(const char* name, const int grid[3], int num_threads, int shared_bytes,
                            void** arguments) {
  const emulation::Kernel* kernel = find(name);
  if (kernel == nullptr || num_threads < 1 || num_threads > 1024 || shared_bytes < 0 ||
      shared_bytes > 227 * 1024) {
    failure = kernel == nullptr ? std::string("no kernel ") + name : "no GPU has such a block";
    return 1;
  }
  gridDim = {unsigned(grid[0]), unsigned(grid[1]), unsigned(grid[2])};
  blockDim = {unsigned(num_threads), 1, 1};
  const unsigned num_blocks = gridDim.x * gridDim.y * gridDim.z;
  for (unsigned turn = 0; turn < num_blocks; ++turn) {
    const unsigned block = is_reversed ? num_blocks - 1 - turn : turn;
    blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
    if (!emulation::run_block({kernel, arguments, num_threads, shared_bytes}, is_reversed)) {
      failure = emulation::error();
      return 1;
    }
  }
  return 0;
}
