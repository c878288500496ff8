// As much of CUDA as the kernels use, on the host. Included before every kernel source.
//
// Each thread of a block is a fiber (fiber.h): it runs until it waits for others, so that a run is
// deterministic and a wait that nobody ends is an error with a message, never a hang (block.h).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#define __global__ inline
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

using std::max;
using std::memcpy;
using std::min;

struct Index {
  unsigned x, y, z;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

// Waits until every thread of the block is here.
void barrier();

// A warp's collective instruction: `in` and `out` of all lanes, completed by the last to arrive.
struct Exchange {
  std::uint32_t in[32][10];
  std::uint32_t out[32][4];
};
using Complete = void (*)(Exchange&, std::uint32_t mask);

// Waits until the lanes of `mask` are here with the same instruction, and gives this lane's `out`.
const std::uint32_t* collective(const char* name, std::uint32_t mask, const std::uint32_t* in,
                                int num_in, Complete complete);

}  // namespace emulation

inline void __syncthreads() { emulation::barrier(); }
inline void __threadfence() {}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulation::collective("__syncwarp", mask, nullptr, 0, [](emulation::Exchange&, std::uint32_t) {});
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const std::uint32_t in = predicate != 0;
  return *emulation::collective("__ballot_sync", mask, &in, 1,
                                [](emulation::Exchange& e, std::uint32_t lanes) {
                                  std::uint32_t votes = 0;
                                  for (int i = 0; i < 32; ++i)
                                    if (lanes >> i & 1) votes |= e.in[i][0] << i;
                                  for (auto& out : e.out) out[0] = votes;
                                });
}

namespace emulation {

// `source` is the lane that this lane reads from; its own if out of range.
template <typename V>
V shuffle(const char* name, unsigned mask, V value, int source) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8);
  std::uint32_t in[3] = {0, 0, static_cast<std::uint32_t>(source)};
  memcpy(in, &value, sizeof(V));
  const std::uint32_t* out = collective(name, mask, in, 3, [](Exchange& e, std::uint32_t lanes) {
    for (int i = 0; i < 32; ++i) {
      const std::uint32_t from = e.in[i][2];
      const bool is_there = from < 32 && (lanes >> from & 1);
      for (int word = 0; word < 2; ++word) e.out[i][word] = is_there ? e.in[from][word] : ~0u;
    }
  });
  memcpy(&value, out, sizeof(V));
  return value;
}

}  // namespace emulation

template <typename V>
V __shfl_sync(unsigned mask, V value, int lane) {
  return emulation::shuffle("__shfl_sync", mask, value, lane & 31);
}

template <typename V>
V __shfl_xor_sync(unsigned mask, V value, int bits) {
  return emulation::shuffle("__shfl_xor_sync", mask, value, (threadIdx.x % 32) ^ bits);
}

template <typename V>
V __shfl_up_sync(unsigned mask, V value, unsigned distance) {
  const int lane = threadIdx.x % 32;
  const int source = lane - static_cast<int>(distance);
  return emulation::shuffle("__shfl_up_sync", mask, value, source < 0 ? lane : source);
}

// Fibers are not interrupted, so that a plain update is atomic.
template <typename V>
V atomicAdd(V* address, V value) {
  const V before = *address;
  *address = before + value;
  return before;
}

template <typename To, typename From>
To bit_cast_to(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

template <typename V>
V __ldcg(const V* address) {
  return *address;
}

inline float __int_as_float(int bits) { return bit_cast_to<float>(bits); }
inline float __uint_as_float(unsigned bits) { return bit_cast_to<float>(bits); }
inline double __longlong_as_double(long long bits) { return bit_cast_to<double>(bits); }
inline long long __double_as_longlong(double value) { return bit_cast_to<long long>(value); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline unsigned __float_as_uint(float value) { return bit_cast_to<unsigned>(value); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline int __clzll(long long bits) { return bits == 0 ? 64 : __builtin_clzll(bits); }
inline int __clz(unsigned bits) { return bits == 0 ? 32 : __builtin_clz(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

// Bytes 0-3 are those of `low`, 4-7 those of `high`; each hex digit of `selector` names one.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xff) << (8 * i);
  return result;
}
