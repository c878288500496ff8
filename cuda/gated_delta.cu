// The gated delta rule (Yang et al., 2024): a linear attention whose state forgets, and corrects
// what it recalls.
#include "chairlift/activation.cuh"
#include "chairlift/head_state.cuh"

namespace chairlift {

// Added to the square of the length of a key or query.
constexpr float kLengthEps = 1e-6f;

// Widens numbers to a vector of a length, by a warp: `out` [padded], zeros behind `size`.
template <typename T>
__device__ __forceinline__ void widen_to_length(float* out, const T* from, int size, int padded,
                                                float length) {
  float squares = 0.0f;
  for (int i = threadIdx.x % 32; i < size; i += 32) {
    const float number = from[i];
    squares = fmaf(number, number, squares);
  }
  widen(out, from, size, padded, rsqrtf(warp_sum(squares) + kLengthEps) * length);
}

// S = e^(-rate softplus(a + dt_bias)) S; S = S + k (most_share sigmoid(b) (v - S^T k))^T;
// out = norm(S^T q) silu(gate), with k of length 1 and q of length 1 / sqrt(key_dim).
//
// Grid (num_rows, num_value_heads), 4 * value_dim threads, 8 * (2 * kKeys + value_dim + 2) floats
// of shared memory: a block has a head of a row, whose state is in its registers; key_dim is at
// most kKeys, value_dim a multiple of 16. Every token is one step of the recurrence, so that the
// bits of a row are a function of its tokens alone.
template <typename T, int kKeys>
__global__ void __launch_bounds__(kKeys > 128 ? 512 : 768)
    gated_delta(T* out,         // [num_tokens, num_value_heads * value_dim]
                const T* qkv,   // [num_tokens, ...]: queries, keys and values of all heads
                const T* gate,  // as out
                const T* b_a,   // [num_tokens, 2 * num_value_heads]: b of all heads, then a
                const float* rate, const float* dt_bias,  // [num_value_heads]
                const float* norm_weight,                 // [value_dim]
                float* state,     // [., num_value_heads, key_dim, value_dim]: of each row
                const int* rows,  // [num_rows], as the others of Sequences
                const int* query_start_loc, const int* seq_lens,
                long long out_stride,  // elements from token to token
                long long qkv_stride, long long gate_stride, long long b_a_stride,
                long long state_stride,  // elements from row to row
                int num_key_heads, int key_dim, int value_dim, float eps, float most_share,
                int in_turn) {  // value head n has key head n % num_key_heads
  const Sequences sequences{rows, query_start_loc, seq_lens, static_cast<int>(gridDim.x)};
  const int r = blockIdx.x, head = blockIdx.y, num_heads = gridDim.y;
  const int first = sequences.first(r), count = sequences.count(r);
  if (count == 0) return;
  const StagedTokens<kKeys> staged(reinterpret_cast<float*>(dynamic_shared()), value_dim);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
  const int key_head = in_turn ? head % num_key_heads : head / (num_heads / num_key_heads);
  const int key_size = num_key_heads * key_dim, begin = head * value_dim;
  float* own =
      state + rows[r] * state_stride + head * (static_cast<long long>(key_dim) * value_dim);

  HeadState<kKeys> matrix;
  matrix.load(own, key_dim, value_dim, sequences.is_new(r));
  for (int done = 0; done < count; done += kStateTokens) {
    const int some = min(kStateTokens, count - done);
    for (int t = warp; t < some; t += num_warps) {
      const long long token = first + done + t;
      const T* query = qkv + token * qkv_stride + key_head * key_dim;
      widen_to_length(staged.queries + t * kKeys, query, key_dim, kKeys,
                      rsqrtf(static_cast<float>(key_dim)));
      widen_to_length(staged.keys + t * kKeys, query + key_size, key_dim, kKeys, 1.0f);
      widen(staged.values + t * value_dim, qkv + token * qkv_stride + 2 * key_size + begin,
            value_dim, value_dim, 1.0f);
      if (lane == 0) {
        const T* numbers = b_a + token * b_a_stride;
        const float step = softplus(float(numbers[num_heads + head]) + dt_bias[head]);
        staged.decays[t] = expf(-rate[head] * step);
        staged.shares[t] = most_share / (1.0f + expf(-float(numbers[head])));
      }
    }
    __syncthreads();
    for (int t = 0; t < some; ++t) {
      const float* keys = staged.keys + t * kKeys;
      float* place = staged.values + t * value_dim + matrix.column();
      const float recalled = matrix.recall(staged.decays[t], keys);
      const float correction = (*place - recalled) * staged.shares[t];
      const float sum = matrix.add(1.0f, keys, staged.queries + t * kKeys, correction);
      // All lanes of the column have read it: they have met in the sum.
      if (matrix.part() == 0) *place = sum;
    }
    __syncthreads();
    for (int t = warp; t < some; t += num_warps) {
      const long long token = first + done + t;
      const float* numbers = staged.values + t * value_dim;
      float squares = 0.0f;
      for (int i = lane; i < value_dim; i += 32) squares = fmaf(numbers[i], numbers[i], squares);
      const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(value_dim) + eps);
      for (int i = lane; i < value_dim; i += 32) {
        const float gated = activated(gate[token * gate_stride + begin + i], kSilu);
        out[token * out_stride + begin + i] =
            round_to<T>(numbers[i] * scale * norm_weight[i] * gated);
      }
    }
    __syncthreads();
  }
  matrix.store(own, key_dim, value_dim);
}

}  // namespace chairlift
