// Kernels with a bug each, and the same without it: what the emulation must catch. One block of 64
// threads and 64 numbers, unless a comment says otherwise.
#include "chairlift/vec.cuh"

namespace chairlift {

// out[i] = in[63 - i] by way of shared memory. kWait and kBarrier false: bugs.
template <bool kWait, bool kBarrier>
__global__ void mirror(float* out, const float* in) {
  float* shared = reinterpret_cast<float*>(dynamic_shared());
  if (threadIdx.x < 16) {
    copy_async(shared + 4 * threadIdx.x, in + 4 * threadIdx.x, true);
    commit_copies();
    if (kWait) wait_copies<0>();
  }
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = shared[63 - threadIdx.x];
  if (!kWait) wait_copies<0>();
}

// The second copy goes where the last warp may still read the first. kBarrier false: a bug.
template <bool kBarrier>
__global__ void reuse(float* out, const float* in) {
  float* shared = reinterpret_cast<float*>(dynamic_shared());
  for (int turn = 0; turn < 2; ++turn) {
    if (threadIdx.x < 16)
      copy_async(shared + 4 * threadIdx.x, in + 64 * turn + 4 * threadIdx.x, true);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    out[64 * turn + threadIdx.x] = shared[63 - threadIdx.x];
    if (kBarrier) __syncthreads();
  }
}

// Two groups, read one after the other; a wait that leaves one of them in flight is a bug.
template <int kLeft>
__global__ void ring(float* out, const float* in) {
  float* shared = reinterpret_cast<float*>(dynamic_shared()) + 4 * threadIdx.x;
  for (int group = 0; group < 2; ++group) {
    copy_async(shared, in + 4 * threadIdx.x, true);
    commit_copies();
    wait_copies<kLeft>();
    out[4 * threadIdx.x + group] = shared[0];
  }
  wait_copies<0>();
}

template <bool kDiverge>
__global__ void meet(float* out) {
  if (!kDiverge || threadIdx.x < 40) __syncthreads();
  out[threadIdx.x] = 1.0f;
}

template <bool kDiverge>
__global__ void shuffle(float* out) {
  float sum = 1.0f;
  if (!kDiverge || threadIdx.x % 32 < 31) sum = warp_sum(sum);
  out[threadIdx.x] = sum;
}

// Half of a warp is at a shuffle, the other half at a vote.
__global__ void mixed(float* out) {
  if (threadIdx.x % 2 == 0)
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 2);
  else
    out[threadIdx.x] = static_cast<float>(__ballot_sync(0xffffffffu, 1));
}

// Writes and reads `distance` numbers past its own.
__global__ void write_global(float* out, int distance) { out[threadIdx.x + distance] = 1.0f; }
__global__ void read_global(float* out, const float* in, int distance) {
  out[threadIdx.x] = in[threadIdx.x + distance];
}
__global__ void write_shared(float* out, int distance) {
  reinterpret_cast<float*>(dynamic_shared())[threadIdx.x + distance] = 1.0f;
  out[threadIdx.x] = 1.0f;
}

// Copies 16 bytes per thread to `offset` bytes into shared memory; nobody waits for it.
__global__ void copy_to(const float* in, int offset) {
  copy_async(dynamic_shared() + 16 * threadIdx.x + offset, in, true);
  commit_copies();
}

// c = a b for 16 x 16 and 16 x 8, and the matrices that ldmatrix gave; one warp.
template <typename T>
__global__ void product(float* c, const T* a, const T* b) {
  T* shared = reinterpret_cast<T*>(dynamic_shared());
  for (int i = threadIdx.x; i < 16 * 16; i += 32) shared[i] = a[i];
  for (int i = threadIdx.x; i < 16 * 8; i += 32) shared[256 + i] = b[i];
  __syncwarp();
  unsigned of_a[4], of_b[4];
  const int matrix = threadIdx.x / 8, row = threadIdx.x % 8;
  load_matrices(of_a, shared + (matrix % 2 * 8 + row) * 16 + matrix / 2 * 8);
  load_matrices_transposed(of_b, shared + 256 + (matrix % 2 * 8 + row) * 8);
  float sums[4] = {};
  mma<T>(sums, of_a, of_b[0], of_b[1]);
  for (int i = 0; i < 4; ++i)
    c[(threadIdx.x / 4 + i / 2 * 8) * 8 + threadIdx.x % 4 * 2 + i % 2] = sums[i];
}

// Conversions there and back: of every float8, and of numbers to T and float8.
template <typename T>
__global__ void convert(float* out, float* rounded, unsigned char* narrow, const float* in) {
  const unsigned pair = widen_pair<T>((blockIdx.x * 64 + threadIdx.x) << 8);
  out[blockIdx.x * 64 + threadIdx.x] = float(T{static_cast<unsigned short>(pair)});
  const int i = blockIdx.x * 64 + threadIdx.x;
  rounded[i] = float(round_to<T>(in[i]));
  narrow[i] = float8_e4m3::from(in[i]).bits;
}

}  // namespace chairlift
