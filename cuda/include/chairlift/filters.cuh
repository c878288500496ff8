// Filters that do not keep the head of the order of tokens, or that depend on all logits.
//
// A token that is dropped is seen as -inf: by the next filter, and by the draw.
#pragma once

#include "chairlift/draw.cuh"
#include "chairlift/softmax.cuh"

namespace chairlift {

// Which tokens of a row the filters have dropped so far; it lies in shared memory.
struct Dropped {
  const unsigned* mask;  // bit i % 32 of number i / 32 allows token i; null allows all
  float least;           // top-n-sigma: lesser logits are dropped
  Key last;              // top_k, top_p: tokens after this one are dropped
  // typical-p: tokens whose surprise is farther from the expected one are dropped.
  float distance, entropy, log_total;
  Weights typical;
  // min_p and XTC: weights below the floor, and of at least the top but one token's, are dropped.
  Weights relative;
  Fixed top;
  Key exempt;

  __device__ __forceinline__ void clear(const unsigned* allowed) {
    mask = allowed;
    least = minus_infinity();
    last = ~Key{0};
    distance = entropy = log_total = 0.0f;
    typical = relative = {0.0f, 0.0f, 0.0f, ~Key{0}};
    top = exempt = ~Key{0};
  }

  // How far a token's surprise, minus the log of its probability, is from the expected one.
  __device__ __forceinline__ float distance_of(float logit) const {
    const float surprise = log_total - (logit - typical.largest) * typical.inverse_temperature;
    return fabsf(surprise - entropy);
  }
};

// Sees the logits of a row as the filters have left them.
struct DropSome {
  static constexpr bool kIsFree = false;
  const Dropped* dropped;

  __device__ __forceinline__ float operator()(float logit, int id) const {
    const Dropped& by = *dropped;
    bool is_kept = by.mask == nullptr || (by.mask[id / 32] >> (id % 32) & 1) != 0;
    is_kept &= !(logit < by.least);
    if (by.last != ~Key{0}) is_kept &= key_of(logit, id) <= by.last;
    if (by.typical.inverse_temperature > 0.0f) is_kept &= by.distance_of(logit) <= by.distance;
    if (by.relative.inverse_temperature > 0.0f) {
      is_kept &= by.relative.of(logit) >= by.relative.floor;
      is_kept &= by.relative.fixed(logit) < by.top || key_of(logit, id) == by.exempt;
    }
    return is_kept ? logit : minus_infinity();
  }
};

using NarrowedRow = SampleRow<float, DropSome>;

// Changes what is dropped, between two passes over the row.
template <typename Change>
__device__ __forceinline__ void change_dropped(Dropped& dropped, Change change) {
  __syncthreads();
  if (threadIdx.x == 0) change(dropped);
  __syncthreads();
}

// The sum of a number of each thread, at every thread, in a fixed order.
struct AddDoubles {
  __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const {
    const double sum = __longlong_as_double(static_cast<long long>(a)) +
                       __longlong_as_double(static_cast<long long>(b));
    return static_cast<unsigned long long>(__double_as_longlong(sum));
  }
};
__device__ inline double block_sum(double value, SampleMemory& memory) {
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(value));
  return __longlong_as_double(static_cast<long long>(block_reduce(bits, AddDoubles{}, memory)));
}

// Drops what is more than n standard deviations below the largest of the logits that are left
// (Tang et al., 2024, as in llama.cpp).
__device__ inline void drop_below_sigma(const NarrowedRow& row, Dropped& dropped,
                                        SampleMemory& memory, float most, float n) {
  double sum = 0.0;
  Fixed count = 0;
  row.for_each([&](float logit, int) {
    const bool is_left = logit > minus_infinity();
    sum += is_left ? static_cast<double>(logit) : 0.0;
    count += is_left;
  });
  const auto total = static_cast<double>(block_reduce(count, Add{}, memory));
  const double mean = block_sum(sum, memory) / total;
  double squares = 0.0;
  row.for_each([&](float logit, int) {
    const double from_mean = static_cast<double>(logit) - mean;
    squares += logit > minus_infinity() ? from_mean * from_mean : 0.0;
  });
  const double deviation = sqrt(block_sum(squares, memory) / total);
  const auto least = static_cast<float>(static_cast<double>(most) - n * deviation);
  change_dropped(dropped, [&](Dropped& by) { by.least = least; });
}

// The tokens of a row in the order of their distances: such a key has a logit's bits as its lower
// half, so that equal keys have equal weights.
struct ByDistance {
  const NarrowedRow& row;
  const Dropped& dropped;

  template <typename Visit>
  __device__ __forceinline__ void for_each_candidate(const SampleMemory&, Visit visit) const {
    row.for_each([&](float logit, int) {
      if (logit == minus_infinity()) return;
      const auto distance = static_cast<Key>(__float_as_uint(dropped.distance_of(logit)));
      visit(distance << 32 | key_of(logit, 0) >> 32);
    });
  }
};

struct WeightOfLogit {
  Weights weights;

  static constexpr bool is_count = false;
  __device__ __forceinline__ Fixed of(Key key) const { return weights.fixed(logit_of(key << 32)); }
};

// Keeps the tokens whose surprise is nearest to the entropy, the fewest whose share reaches p, and
// equals of the last (Meister et al., 2022, as in `transformers`).
__device__ inline void keep_typical(const NarrowedRow& row, Dropped& dropped, SampleMemory& memory,
                                    const Weights& weights, float p) {
  constexpr float kEntropyUnit = 1099511627776.0f;  // 2^40: each summand is below 16
  Fixed sum = 0;
  row.for_each([&](float logit, int) { sum += weights.fixed(logit); });
  sum = block_reduce(sum, Add{}, memory);
  const double total = static_cast<double>(sum) / static_cast<double>(kFixedUnit);
  const auto log_total = static_cast<float>(log(total));
  Fixed parts = 0;
  row.for_each([&](float logit, int) {
    const float weight = weights.of(logit);
    if (weight == 0.0f) return;
    const float surprise =
        fmaxf(log_total - (logit - weights.largest) * weights.inverse_temperature, 0.0f);
    parts += static_cast<Fixed>(weight * surprise * kEntropyUnit);
  });
  parts = block_reduce(parts, Add{}, memory);
  const auto entropy =
      static_cast<float>(static_cast<double>(parts) / static_cast<double>(kEntropyUnit) / total);
  change_dropped(dropped, [&](Dropped& by) {
    by.entropy = entropy, by.log_total = log_total;
    by.typical.largest = weights.largest;
    // Nothing is dropped before the distance is known, and it has to be computed meanwhile.
    by.typical.inverse_temperature = weights.inverse_temperature;
    by.distance = __int_as_float(0x7f800000);
  });
  const auto enough = static_cast<Fixed>(static_cast<double>(p) * static_cast<double>(sum));
  const Key last = select(ByDistance{row, dropped}, memory, Key{0}, ~Key{0}, max(enough, Fixed{1}),
                          WeightOfLogit{weights});
  change_dropped(dropped, [&](Dropped& by) {
    by.distance = __uint_as_float(static_cast<unsigned>(last >> 32));
  });
}

// Drops all tokens with a share of at least `threshold` but the last of them in the order ("exclude
// top choices", by p-e-w, as in llama.cpp).
__device__ inline void exclude_top(const NarrowedRow& row, Dropped& dropped, SampleMemory& memory,
                                   const Weights& weights, float threshold) {
  Fixed sum = 0;
  row.for_each([&](float logit, int) { sum += weights.fixed(logit); });
  sum = block_reduce(sum, Add{}, memory);
  const auto top =
      static_cast<Fixed>(ceil(static_cast<double>(threshold) * static_cast<double>(sum)));
  Key last = 0;
  row.for_each([&](float logit, int id) {
    if (logit > minus_infinity() && weights.fixed(logit) >= top)
      last = max(last, key_of(logit, id));
  });
  last = block_reduce(last, Greatest{}, memory);
  change_dropped(dropped, [&](Dropped& by) { by.top = top, by.exempt = last; });
}

// Drops what temperature, top_k, typical-p, top_p, min_p and XTC drop, in this order; XTC where
// `excludes_top`.
__device__ inline void narrow(const NarrowedRow& row, Dropped& dropped, SampleMemory& memory,
                              const Draw& draw, float typical_p, bool excludes_top,
                              float xtc_threshold, const Largest& largest) {
  Weights weights = weights_at(draw.temperature, logit_of(largest.key));
  const Draw by_count{draw.temperature, draw.top_k, 1.0f, 0.0f, 0.0};
  const Key last = last_kept(row, memory, weights, by_count, largest);
  change_dropped(dropped, [&](Dropped& by) { by.last = last; });
  if (typical_p < 1.0f) keep_typical(row, dropped, memory, weights, typical_p);
  const Largest left = find_largest(row, memory);
  weights = weights_at(draw.temperature, logit_of(left.key));
  const Draw by_share{draw.temperature, 0, draw.top_p, 0.0f, 0.0};
  const Key last_of_share = last_kept(row, memory, weights, by_share, left);
  change_dropped(dropped, [&](Dropped& by) {
    by.last = min(by.last, last_of_share);
    by.relative = weights;
    by.relative.floor = draw.min_p;
  });
  if (excludes_top) exclude_top(row, dropped, memory, weights, xtc_threshold);
}

}  // namespace chairlift
