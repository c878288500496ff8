// Mixtures of experts beside their layers: which experts compute a token, its pairs in the order of
// experts, and the sum of what these computed. expert_gemm.cu has the layers.
//
//   token                  0      1      2            top_k is 2
//   chosen                 0 2    1 2    0 2          ascending, each with a weight
//   pair                   0 1    2 3    4 5          token * top_k + choice
//   order                  0 4 | 2 | 1 3 5            pairs by expert
//   tiles                  [0: 0 4] [1: 2] [2: 1 3 5]  rows of one expert, at most tile_rows
#include "chairlift/exp.cuh"
#include "chairlift/select.cuh"

namespace chairlift {

constexpr int kGroupThreads = 1024;
constexpr int kSumThreads = 256;

// As `SCORES` of kernels/cuda/experts.py numbers them.
enum Scores { kSoftmax, kSoftmaxOfChosen, kSigmoid };

// The sum of `value` over the first `count` lanes, one after the other as on the CPU.
__device__ __forceinline__ float sum_in_order(float value, int count) {
  float sum = 0.0f;
  for (int lane = 0; lane < count; ++lane) sum += __shfl_sync(0xffffffffu, value, lane);
  return sum;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, bits));
  return value;
}

// Makes the logits of a token, read by one warp, its scores.
__device__ __forceinline__ void score_experts(float* scores, const float* logits, int num_experts,
                                              int kind) {
  const int lane = threadIdx.x % 32;
  if (kind != kSoftmax) {
    for (int e = lane; e < num_experts; e += 32)
      scores[e] = kind == kSigmoid ? 1.0f / (1.0f + exp_as_on_cpu(-logits[e])) : logits[e];
    __syncwarp();
    return;
  }
  float largest = __uint_as_float(0xff800000u);
  for (int e = lane; e < num_experts; e += 32) largest = fmaxf(largest, logits[e]);
  largest = warp_max(largest);
  for (int e = lane; e < num_experts; e += 32) scores[e] = exp_as_on_cpu(logits[e] - largest);
  __syncwarp();
  float sum = 0.0f;
  for (int e = 0; e < num_experts; ++e) sum += scores[e];
  __syncwarp();
  for (int e = lane; e < num_experts; e += 32) scores[e] /= sum;
  __syncwarp();
}

// Chooses the experts with the largest scores, of equal ones the first; NaN is the last. The bits
// are those of the CPU's `route`.
//
// Grid (ceil(num_tokens / 4)), 128 threads, 16 * num_experts bytes of shared memory: a warp has a
// token. top_k is at most 32.
__global__ void __launch_bounds__(128)
    route_experts(int* chosen,           // [num_tokens, top_k], ascending
                  float* weights,        // [num_tokens, top_k]
                  const float* logits,   // [num_tokens, num_experts]
                  const float* bias,     // [num_experts], for the choice alone, or null
                  const float* factors,  // [num_experts], of the weights, or null
                  long long stride,      // of logits from token to token
                  int num_tokens, int num_experts, int top_k,
                  int kind,         // of scores
                  float least_sum,  // what weights are divided by, at least; negative: they are not
                  float multiplier) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int token = blockIdx.x * 4 + warp;
  if (token >= num_tokens) return;
  float* scores = reinterpret_cast<float*>(dynamic_shared()) + warp * num_experts;
  score_experts(scores, logits + token * stride, num_experts, kind);

  // Lane i has the i-th choice.
  int expert = 0;
  float weight = __uint_as_float(0xff800000u);
  Key last = 0;
  for (int i = 0; i < top_k; ++i) {
    Key best = ~Key{0};
    for (int e = lane; e < num_experts; e += 32) {
      const float score = scores[e] + (bias == nullptr ? 0.0f : bias[e]);
      const Key key = key_of(score != score ? __uint_as_float(0xff800000u) : score, e);
      if (key > last && key < best) best = key;
    }
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) {
      const Key other = __shfl_xor_sync(0xffffffffu, best, bits);
      best = other < best ? other : best;
    }
    last = best;
    if (lane == i) {
      expert = static_cast<int>(best & 0xffffffffu);
      weight = scores[expert];
    }
  }
  if (kind == kSoftmaxOfChosen) {
    weight = exp_as_on_cpu(weight - warp_max(weight));
    weight /= sum_in_order(weight, top_k);
  }
  if (least_sum >= 0.0f) {
    const float sum = sum_in_order(weight, top_k);
    weight /= sum < least_sum ? least_sum : sum;
  }
  // A token adds its experts in their order.
  int place = 0;
  for (int other = 0; other < top_k; ++other)
    place += __shfl_sync(0xffffffffu, expert, other) < expert;
  if (lane >= top_k) return;
  chosen[token * top_k + place] = expert;
  weights[token * top_k + place] =
      __fmul_rn(weight, __fmul_rn(multiplier, factors == nullptr ? 1.0f : factors[expert]));
}

// Where the pairs and the tiles of each expert begin, from the number of its pairs; one warp.
__device__ __forceinline__ void scan_counts(int* starts, int* tile_starts, const int* counts,
                                            int num_experts, int tile_rows) {
  const int lane = threadIdx.x % 32;
  int pairs_before = 0, tiles_before = 0;
  for (int first = 0; first < num_experts; first += 32) {
    const int count = first + lane < num_experts ? counts[first + lane] : 0;
    int pairs = count, tiles = (count + tile_rows - 1) / tile_rows;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other_pairs = __shfl_up_sync(0xffffffffu, pairs, distance);
      const int other_tiles = __shfl_up_sync(0xffffffffu, tiles, distance);
      if (lane >= distance) {
        pairs += other_pairs;
        tiles += other_tiles;
      }
    }
    if (first + lane < num_experts) {
      starts[first + lane + 1] = pairs_before + pairs;
      tile_starts[first + lane + 1] = tiles_before + tiles;
    }
    pairs_before += __shfl_sync(0xffffffffu, pairs, 31);
    tiles_before += __shfl_sync(0xffffffffu, tiles, 31);
  }
  if (lane == 0) starts[0] = tile_starts[0] = 0;
}

// Sorts pairs by expert, by counting, and cuts those of each expert into tiles. Pairs of one expert
// are in any order, on which no result depends.
//
// Grid (1), kGroupThreads threads, 12 * (num_experts + 1) bytes of shared memory. max_tiles has
// room for any choice: n + (num_pairs - n) / tile_rows, where n is the lesser of experts and pairs.
__global__ void __launch_bounds__(1024)
    group_by_expert(int* order,         // [num_pairs]
                    int* tiles,         // [max_tiles, 3]: expert, first place in order, how many;
                                        // the expert of those that are not needed is -1
                    const int* chosen,  // [num_pairs]
                    int num_pairs, int num_experts, int tile_rows, int max_tiles) {
  int* counts = reinterpret_cast<int*>(dynamic_shared());
  int* starts = counts + num_experts + 1;
  int* tile_starts = starts + num_experts + 1;
  for (int e = threadIdx.x; e < num_experts; e += kGroupThreads) counts[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < num_pairs; i += kGroupThreads) atomicAdd(&counts[chosen[i]], 1);
  __syncthreads();
  if (threadIdx.x < 32) scan_counts(starts, tile_starts, counts, num_experts, tile_rows);
  __syncthreads();
  for (int e = threadIdx.x; e < num_experts; e += kGroupThreads) counts[e] = starts[e];
  for (int t = threadIdx.x; t < max_tiles; t += kGroupThreads) {
    int low = 0, high = num_experts;  // the last expert whose tiles begin at t or before
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (tile_starts[middle] <= t)
        low = middle;
      else
        high = middle;
    }
    const bool is_needed = t < tile_starts[num_experts];
    const int first = starts[low] + (t - tile_starts[low]) * tile_rows;
    tiles[3 * t] = is_needed ? low : -1;
    tiles[3 * t + 1] = first;
    tiles[3 * t + 2] = min(tile_rows, starts[low + 1] - first);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_pairs; i += kGroupThreads)
    order[atomicAdd(&counts[chosen[i]], 1)] = i;
}

// out = the sum of what a token's experts computed, each times its weight, in the order of experts.
//
// Grid (num_tokens, ceil(hidden_size / 2048)), kSumThreads threads, no shared memory: a thread
// makes 16 bytes. hidden_size is a multiple of 8.
template <typename T>
__global__ void __launch_bounds__(256)
    sum_experts(T* out,                // [num_tokens, hidden_size]
                const T* parts,        // [num_tokens, top_k, hidden_size]
                const float* weights,  // [num_tokens, top_k]
                int hidden_size, int top_k) {
  constexpr int kVec = Vec<T>::kSize;
  const int i = (blockIdx.y * kSumThreads + threadIdx.x) * kVec;
  if (i >= hidden_size) return;
  const long long token = blockIdx.x;
  float sums[kVec] = {};
  for (int k = 0; k < top_k; ++k) {
    const long long pair = token * top_k + k;
    float values[kVec];
    Vec<T>::load(parts + pair * hidden_size + i).unpack(values);
#pragma unroll
    for (int j = 0; j < kVec; ++j) sums[j] = fmaf(weights[pair], values[j], sums[j]);
  }
  Vec<T>::pack_from(sums).store(out + token * hidden_size + i);
}

}  // namespace chairlift
