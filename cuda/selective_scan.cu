// The selective scan of Mamba-2 (Dao and Gu, 2024): a linear attention whose state decays by what
// each token says.
#include "chairlift/head_state.cuh"

namespace chairlift {

// step = softplus(dt + dt_bias); S = e^(-rate step) S + (step B) x^T; out = S^T C + skip x.
//
// Grid (num_rows, num_heads), 4 * head_dim threads, 8 * (2 * kKeys + head_dim + 2) floats of shared
// memory: a block has a head of a row, whose state is in its registers; state_dim is at most kKeys,
// head_dim a multiple of 16. Every token is one step of the recurrence, so that the bits of a row
// are a function of its tokens alone.
template <typename T, int kKeys>
__global__ void __launch_bounds__(kKeys > 128 ? 512 : 768)
    selective_scan(T* out,        // [num_tokens, num_heads * head_dim]
                   const T* xbc,  // [num_tokens, ...]: x of all heads, B and C of all groups
                   const T* dt,   // [num_tokens, num_heads]
                   const float* rate, const float* dt_bias, const float* skip,  // [num_heads]
                   float* state,     // [., num_heads, state_dim, head_dim]: of each row
                   const int* rows,  // [num_rows], as the others of Sequences
                   const int* query_start_loc, const int* seq_lens,
                   long long out_stride,  // elements from token to token
                   long long xbc_stride, long long dt_stride,
                   long long state_stride,  // elements from row to row
                   int num_groups, int state_dim, int head_dim) {
  const Sequences sequences{rows, query_start_loc, seq_lens, static_cast<int>(gridDim.x)};
  const int r = blockIdx.x, head = blockIdx.y, num_heads = gridDim.y;
  const int first = sequences.first(r), count = sequences.count(r);
  if (count == 0) return;
  const StagedTokens<kKeys> staged(reinterpret_cast<float*>(dynamic_shared()), head_dim);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
  const int group = head / (num_heads / num_groups), inner = num_heads * head_dim;
  float* own =
      state + rows[r] * state_stride + head * (static_cast<long long>(state_dim) * head_dim);

  HeadState<kKeys> matrix;
  matrix.load(own, state_dim, head_dim, sequences.is_new(r));
  for (int done = 0; done < count; done += kStateTokens) {
    const int some = min(kStateTokens, count - done);
    for (int t = warp; t < some; t += num_warps) {
      const long long token = first + done + t;
      const T* numbers = xbc + token * xbc_stride;
      const float step = softplus(float(dt[token * dt_stride + head]) + dt_bias[head]);
      if (lane == 0) staged.decays[t] = expf(-rate[head] * step);
      widen(staged.values + t * head_dim, numbers + head * head_dim, head_dim, head_dim, 1.0f);
      const T* b = numbers + inner + group * state_dim;
      widen(staged.keys + t * kKeys, b, state_dim, kKeys, step);
      widen(staged.queries + t * kKeys, b + num_groups * state_dim, state_dim, kKeys, 1.0f);
    }
    __syncthreads();
    for (int t = 0; t < some; ++t) {
      float* place = staged.values + t * head_dim + matrix.column();
      const float value = *place;
      const float sum =
          matrix.add(staged.decays[t], staged.keys + t * kKeys, staged.queries + t * kKeys, value);
      // All lanes of the column have read it: they have met in the sum.
      if (matrix.part() == 0) *place = fmaf(value, skip[head], sum);
    }
    __syncthreads();
    for (int t = warp; t < some; t += num_warps)
      for (int i = lane; i < head_dim; i += 32)
        out[(first + done + t) * out_stride + head * head_dim + i] =
            round_to<T>(staged.values[t * head_dim + i]);
    __syncthreads();
  }
  matrix.store(own, state_dim, head_dim);
}

}  // namespace chairlift
