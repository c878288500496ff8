// Sums and selections over all tokens of a row by one block, without a sort.
//
// Weights are summed as integers, in units of 2^-44: such a sum has no order, so atomic additions
// give the same bits in every run, and a row's draw does not depend on the order of threads.
#pragma once

#include "chairlift/vec.cuh"

namespace chairlift {

using Key = unsigned long long;    // a token's position in the order, below
using Fixed = unsigned long long;  // a weight in units of 2^-44

constexpr int kSampleThreads = 1024;
constexpr int kMaxCandidates = 4096;
constexpr float kFixedUnit = 17592186044416.0f;  // 2^44: 2^19 weights of 1 fit

// Tokens are ordered by logit, the largest first, and among equals by id, the lowest first. A
// smaller key is an earlier token: the logit's bits, mapped so that integers order as the floats
// do, above the id.
__device__ __forceinline__ Key key_of(float logit, unsigned id) {
  const unsigned bits = __float_as_uint(logit + 0.0f);  // -0.0 equals 0.0
  const unsigned ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(~ascending) << 32 | id;
}

__device__ __forceinline__ float logit_of(Key key) {
  const unsigned ascending = ~static_cast<unsigned>(key >> 32);
  return __uint_as_float(ascending >> 31 ? ascending & 0x7fffffffu : ~ascending);
}

// Unnormalised probabilities of the tokens that the filters keep; 1 for the most likely.
struct Weights {
  float largest;
  float inverse_temperature;
  float floor;  // min_p: lesser weights are dropped
  Key last;     // top_k and top_p: tokens after this one are dropped

  __device__ __forceinline__ float of(float logit) const {
    return expf((logit - largest) * inverse_temperature);
  }
  __device__ __forceinline__ Fixed fixed(float logit) const {
    return static_cast<Fixed>(of(logit) * kFixedUnit);
  }
  __device__ __forceinline__ Fixed kept(float logit, int id) const {
    const float weight = of(logit);
    const bool is_kept = weight >= floor && key_of(logit, id) <= last;
    return is_kept ? static_cast<Fixed>(weight * kFixedUnit) : 0;
  }
};

// What a selection sums up over candidates: 1 each, or their weights up to a last one.
struct Measure {
  bool is_count;
  Weights weights;

  // Of a weight; a count needs no sum beside it.
  __device__ __forceinline__ Fixed of(Key key) const {
    return key <= weights.last ? weights.fixed(logit_of(key)) : 0;
  }
};

// The block's shared memory.
struct SampleMemory {
  unsigned long long reduced[32];
  unsigned long long chosen[2];
  unsigned num_candidates;
  unsigned counts[256];
  union {
    Fixed sums[256];
    uint2 sum_words[256];  // the same: low, high
  };
  Key candidates[kMaxCandidates];
};

struct Add {
  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct Least {
  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a < b ? a : b;
  }
};
struct Greatest {
  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a < b ? b : a;
  }
};

// Combines `value` of all threads, for every thread. With 64-bit integers the order is irrelevant.
template <typename Join>
__device__ unsigned long long block_reduce(unsigned long long value, Join join,
                                           SampleMemory& memory) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2)
    value = join(value, __shfl_xor_sync(0xffffffffu, value, bits));
  __syncthreads();  // the last result was read by all
  if (threadIdx.x % 32 == 0) memory.reduced[threadIdx.x / 32] = value;
  __syncthreads();
  value = memory.reduced[threadIdx.x % 32];
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2)
    value = join(value, __shfl_xor_sync(0xffffffffu, value, bits));
  return value;
}

// The sum over the lanes before this one.
__device__ __forceinline__ Fixed sum_of_lanes_before(Fixed value) {
  const int lane = threadIdx.x % 32;
  Fixed sum = value;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Fixed other = __shfl_up_sync(0xffffffffu, sum, distance);
    if (lane >= distance) sum += other;
  }
  return sum - value;
}

// A row drops nothing.
struct DropNone {
  static constexpr bool kIsFree = true;
  __device__ __forceinline__ float operator()(float logit, int) const { return logit; }
};

// A row of logits, and those of its tokens that are candidates.
template <typename L, typename Drop = DropNone>
struct SampleRow {
  const L* logits;
  int vocab_size;
  Drop drop{};             // gives the logit of an id, or -inf where the token is dropped
  float bound = 0.0f;      // candidates have at least this logit
  bool is_listed = false;  // the candidates are in shared memory
  int num_candidates = 0;

  __device__ __forceinline__ float at(int id) const { return drop(float(logits[id]), id); }

  // Visits (logit, id) of all tokens, ascending within a thread; 16 bytes at a time if aligned.
  // Where dropping takes more than reading, neither copies of the loop nor wide reads would pay.
  template <typename Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    if constexpr (!Drop::kIsFree) {
#pragma unroll 1
      for (int i = threadIdx.x; i < vocab_size; i += kSampleThreads) visit(at(i), i);
      return;
    }
    constexpr int kVec = Vec<L>::kSize;
    int scalars_from = 0;
    if (reinterpret_cast<unsigned long long>(logits) % 16 == 0) {
      scalars_from = vocab_size / kVec * kVec;
#pragma unroll 2
      for (int i = threadIdx.x * kVec; i < scalars_from; i += kSampleThreads * kVec) {
        float values[kVec];
        Vec<L>::load(logits + i).unpack(values);
#pragma unroll
        for (int j = 0; j < kVec; ++j) visit(drop(values[j], i + j), i + j);
      }
    }
    for (int i = scalars_from + threadIdx.x; i < vocab_size; i += kSampleThreads) visit(at(i), i);
  }

  template <typename Visit>
  __device__ __forceinline__ void for_each_candidate(const SampleMemory& memory,
                                                     Visit visit) const {
    if (is_listed) {
      for (int i = threadIdx.x; i < num_candidates; i += kSampleThreads)
        visit(memory.candidates[i]);
    } else {
      for_each([&](float logit, int id) {
        if (logit >= bound) visit(key_of(logit, id));
      });
    }
  }
};

// Adds to a sum in shared memory. Two additions of 32 bits, each one instruction: one of 64 bits
// would be a loop that compares and swaps, in which the threads of a warp wait for one another.
__device__ __forceinline__ void add_fixed(uint2& sum, Fixed value) {
  const unsigned low = static_cast<unsigned>(value);
  const bool carries = atomicAdd(&sum.x, low) + low < low;
  const unsigned high = static_cast<unsigned>(value >> 32) + (carries ? 1u : 0u);
  if (high != 0) atomicAdd(&sum.y, high);
}

// Finds, of 256 bins, the one in which the running sum reaches `target`, or the last one that is
// not empty if none does. By one warp; `chosen` becomes the bin and the sum before it.
__device__ __forceinline__ void find_bin(SampleMemory& memory, Fixed target, bool is_count) {
  constexpr int kOwn = 256 / 32;
  const auto sum_of = [&](int bin) { return is_count ? memory.counts[bin] : memory.sums[bin]; };
  const int lane = threadIdx.x, first = lane * kOwn;
  Fixed mine = 0;
  bool is_filled = false;
  for (int i = 0; i < kOwn; ++i) {
    mine += sum_of(first + i);
    is_filled |= memory.counts[first + i] > 0;
  }
  Fixed before = sum_of_lanes_before(mine);
  const unsigned reached = __ballot_sync(0xffffffffu, before + mine >= target);
  const unsigned filled = __ballot_sync(0xffffffffu, is_filled);
  if (lane != (reached != 0 ? __ffs(reached) - 1 : 31 - __clz(filled))) return;
  int last = first;
  Fixed before_last = before;
  for (int i = 0; i < kOwn; ++i) {
    if (memory.counts[first + i] > 0) last = first + i, before_last = before;
    before += sum_of(first + i);
    if (before >= target) break;
  }
  memory.chosen[0] = last;
  memory.chosen[1] = before_last;
}

// The first candidate, in order of keys, at which the running sum of the measure reaches `target`;
// the last one if none does.
//
// A radix selection: a histogram of eight bits of the keys shows in which bin the sum is reached,
// the next eight bits are counted in that bin alone, and so on until a bin holds one key.
// `from` and `to` bound the keys: the bits that they share need no histogram.
template <typename Row, typename Measured>
__device__ Key select(const Row& row, SampleMemory& memory, Key from, Key to, Fixed target,
                      const Measured& measure) {
  const int differing = 64 - __clzll(static_cast<long long>(from ^ to));
  int shift = max(differing - 8, 0);
  Key prefix = from;  // its bits from shift + 8 on are those of the key
  while (true) {
    const auto is_in_play = [&](Key key) {
      return shift + 8 >= 64 || (key ^ prefix) >> (shift + 8) == 0;
    };
    __syncthreads();
    if (threadIdx.x < 256) memory.counts[threadIdx.x] = 0, memory.sums[threadIdx.x] = 0;
    __syncthreads();
    row.for_each_candidate(memory, [&](Key key) {
      if (!is_in_play(key)) return;
      const int bin = static_cast<int>(key >> shift & 255);
      atomicAdd(&memory.counts[bin], 1u);
      if (!measure.is_count) add_fixed(memory.sum_words[bin], measure.of(key));
    });
    __syncthreads();
    if (threadIdx.x < 32) find_bin(memory, target, measure.is_count);
    __syncthreads();
    const Key bin = memory.chosen[0];
    target -= memory.chosen[1];
    prefix = (prefix >> shift >> 8 << 8 | bin) << shift;
    if (shift == 0) return prefix;
    if (memory.counts[bin] == 1) break;
    shift = max(shift - 8, 0);
  }
  __syncthreads();
  row.for_each_candidate(memory, [&](Key key) {
    if ((key ^ prefix) >> shift == 0) memory.chosen[0] = key;
  });
  __syncthreads();
  return memory.chosen[0];
}

}  // namespace chairlift
