// One draw by one block: the kept head of the order of tokens, and the token at a uniform number.
//
// Tokens are ordered by logit, the largest first, and among equals by id. Every filter here keeps
// the head of that order: top_k keeps k tokens, top_p (Holtzman et al., 2019) the fewest of these
// whose share of their probability reaches p, min_p (Nguyen et al., 2024) those at least p times as
// likely as the first. A draw inverts the cumulative distribution of what is kept, in order of ids.
#pragma once

#include "chairlift/select.cuh"

namespace chairlift {

// How to draw for a row.
struct Draw {
  float temperature;  // 0: greedy
  int top_k;          // 0: off
  float top_p;        // 1: off
  float min_p;        // 0: off
  double uniform;
};

// The first pass: the earliest token in the order, or none if a logit is NaN or +inf, or all are
// -inf; and this thread's largest logit.
struct Largest {
  bool is_sound;
  Key key;
  float of_thread;
};

template <typename Row>
__device__ Largest find_largest(const Row& row, SampleMemory& memory) {
  float most = __int_as_float(0xff800000);  // -inf
  unsigned id = 0xffffffffu;
  bool is_sound = true;
  row.for_each([&](float logit, int i) {
    is_sound &= logit < __int_as_float(0x7f800000);
    if (logit > most) most = logit, id = i;
  });
  // An unsound row has the key that no token has.
  const Key mine = is_sound ? key_of(most, id) : 0;
  const Key first = block_reduce(mine, Least{}, memory);
  return {first != 0 && logit_of(first) > __int_as_float(0xff800000), first, most};
}

// A logit that at least top_k tokens reach, and not many more: the k-th largest of the threads'
// largest. -inf if there are fewer threads.
template <typename Row>
__device__ float bound_of_top_k(const Row& row, SampleMemory& memory, int top_k,
                                const Largest& largest) {
  if (top_k > kSampleThreads) return __int_as_float(0xff800000);
  Row maxima = row;
  maxima.is_listed = true;
  maxima.num_candidates = kSampleThreads;
  __syncthreads();
  memory.candidates[threadIdx.x] = key_of(largest.of_thread, threadIdx.x);
  const Key from = largest.key >> 32 << 32;  // ids are those of threads here
  return logit_of(select(maxima, memory, from, ~Key{0}, top_k, Measure{true, {}}));
}

// A logit that all tokens reach which top_p may keep: those less likely have together less than
// half of what it drops.
template <typename Row>
__device__ float bound_of_top_p(const Row& row, const Draw& draw, float largest) {
  const float rare = 0.5f * (1.0f - draw.top_p) / static_cast<float>(row.vocab_size);
  return largest + draw.temperature * logf(rare);
}

// Lists the tokens that reach row.bound in shared memory, if there is room, and gives the sum of
// all weights of the row.
template <typename Row>
__device__ Fixed list_candidates(Row& row, SampleMemory& memory, const Weights& weights) {
  __syncthreads();
  if (threadIdx.x == 0) memory.num_candidates = 0;
  __syncthreads();
  Fixed sum = 0;
  row.for_each([&](float logit, int id) {
    sum += weights.fixed(logit);
    if (logit < row.bound) return;
    const unsigned place = atomicAdd(&memory.num_candidates, 1u);
    if (place < kMaxCandidates) memory.candidates[place] = key_of(logit, id);
  });
  const Fixed total = block_reduce(sum, Add{}, memory);
  row.num_candidates = static_cast<int>(memory.num_candidates);
  row.is_listed = row.num_candidates <= kMaxCandidates;
  return total;
}

// The last token that top_k and top_p keep.
template <typename Row>
__device__ Key last_kept(Row row, SampleMemory& memory, const Weights& weights, const Draw& draw,
                         const Largest& largest) {
  const bool has_top_k = 0 < draw.top_k && draw.top_k < row.vocab_size;
  if (!has_top_k && draw.top_p >= 1.0f) return ~Key{0};
  row.bound = has_top_k ? bound_of_top_k(row, memory, draw.top_k, largest)
                        : bound_of_top_p(row, draw, weights.largest);
  Fixed total = list_candidates(row, memory, weights);
  const Key to = key_of(row.bound, 0xffffffffu);
  Measure kept{false, weights};
  if (has_top_k) {
    const Measure count{true, weights};
    kept.weights.last = select(row, memory, largest.key, to, draw.top_k, count);
    if (draw.top_p >= 1.0f) return kept.weights.last;
    Fixed sum = 0;
    row.for_each_candidate(memory, [&](Key key) { sum += kept.of(key); });
    total = block_reduce(sum, Add{}, memory);
  }
  const auto enough = static_cast<Fixed>(static_cast<double>(draw.top_p) * total);
  return select(row, memory, largest.key, to, max(enough, Fixed{1}), kept);
}

// The token at which the running sum of weights, in order of ids, exceeds the drawn share.
//
//   ids       | segment of warp 0 | segment of warp 1 | ...            whose sum covers it?
//   segment   | ids of thread 0 | ids of thread 1 | ..                 and whose of these?
template <typename Row>
__device__ int draw_token(const Row& row, SampleMemory& memory, const Weights& weights,
                          double uniform) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int length = (row.vocab_size + 31) / 32;
  Fixed sum = 0;
#pragma unroll 4
  for (int i = lane; i < length; i += 32) {
    const int id = warp * length + i;
    if (id < row.vocab_size) sum += weights.kept(row.at(id), id);
  }
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bits);
  __syncthreads();
  if (lane == 0) memory.sums[warp] = sum;
  __syncthreads();
  Fixed total = 0;
  for (int i = 0; i < 32; ++i) total += memory.sums[i];
  Fixed target = static_cast<Fixed>(static_cast<double>(total) * uniform);
  if (target >= total) target = total - 1;  // rounding: then it is the last one
  int segment = 0;
  while (target >= memory.sums[segment]) target -= memory.sums[segment++];

  const int own = (length + kSampleThreads - 1) / kSampleThreads;
  const int end = min((segment + 1) * length, row.vocab_size);
  const int first = segment * length + threadIdx.x * own;
  sum = 0;
  for (int id = first; id < min(first + own, end); ++id) sum += weights.kept(row.at(id), id);
  Fixed before = sum_of_lanes_before(sum);
  __syncthreads();
  if (lane == 31) memory.sums[warp] = before + sum;
  __syncthreads();
  for (int i = 0; i < warp; ++i) before += memory.sums[i];
  if (before <= target && target < before + sum) {
    int id = first;
    for (target -= before; target >= weights.kept(row.at(id), id); ++id)
      target -= weights.kept(row.at(id), id);
    memory.chosen[0] = id;
  }
  __syncthreads();
  return static_cast<int>(memory.chosen[0]);
}

// Unnormalised probabilities at a temperature, of which `most` is the largest logit.
__device__ __forceinline__ Weights weights_at(float temperature, float most) {
  const float inverse = fminf(1.0f / temperature, 3.4e38f);  // finite: 0 * inf is NaN
  return {most, inverse, 0.0f, ~Key{0}};
}

// The token of a row whose filters keep the head of the order.
template <typename Row>
__device__ int draw_from_head(const Row& row, SampleMemory& memory, const Draw& draw,
                              const Largest& largest) {
  Weights weights = weights_at(draw.temperature, logit_of(largest.key));
  weights.last = last_kept(row, memory, weights, draw, largest);
  weights.floor = draw.min_p;
  return draw_token(row, memory, weights, draw.uniform);
}

// What the model says of a token.
struct Score {
  float logprob;     // log softmax of the logits at the token
  int rank;          // from 1; equals share the best
  double log_total;  // of all weights, the largest of which is 1
};

// Scores a token of a row that has `most` as its largest logit, for every thread.
template <typename Row>
__device__ Score score_token(const Row& row, SampleMemory& memory, int token, float most) {
  const Weights raw{most, 1.0f, 0.0f, ~Key{0}};
  const float chosen = row.at(token);
  Fixed sum = 0, num_larger = 0;
  row.for_each([&](float logit, int) {
    sum += raw.fixed(logit);
    num_larger += logit > chosen;
  });
  sum = block_reduce(sum, Add{}, memory);
  num_larger = block_reduce(num_larger, Add{}, memory);
  const double log_total = log(static_cast<double>(sum) / static_cast<double>(kFixedUnit));
  return {static_cast<float>(static_cast<double>(chosen - most) - log_total),
          1 + static_cast<int>(num_larger), log_total};
}

}  // namespace chairlift
