// Draws the next token of each row: the same draw as rust/chairlift-kernels/src/ops/sampling.rs, at
// a number that depends on (seed, index, position) alone. Rows that ask for more than temperature,
// top_k, top_p and min_p are drawn by sample_options.cu.
#include "chairlift/draw.cuh"
#include "chairlift/philox.cuh"

namespace chairlift {

// Draws one token per row.
//
// Grid (num_samples), 1024 threads, 40960 bytes of shared memory: a block draws for a row. The row
// is read about four times, all but the first out of L2.
template <typename L>
__global__ void __launch_bounds__(1024)
    sample(const L* logits,           // [num_samples, vocab_size]
           int* tokens,               // [num_samples]; -1: NaN, +inf, or nothing but -inf
           float* logprobs,           // [num_samples]: log softmax of the raw logits at the token
           int* ranks,                // [num_samples]: rank among the raw logits, from 1
           const float* temperature,  // [num_samples]; 0: greedy
           const int* top_k,          // [num_samples]; 0: off
           const float* top_p,        // [num_samples]; 1: off
           const float* min_p,        // [num_samples]; 0: off
           const long long* seed,     // [num_samples]
           const int* index,          // [num_samples]: which of the n answers
           const int* position,       // [num_samples]: of the token that is drawn
           int vocab_size,
           long long logits_stride) {  // elements from row to row; best a multiple of 16 bytes
  SampleMemory& memory = *reinterpret_cast<SampleMemory*>(dynamic_shared());
  const int s = blockIdx.x;
  const SampleRow<L> row{logits + s * logits_stride, vocab_size};
  const Largest largest = find_largest(row, memory);
  if (!largest.is_sound) {
    if (threadIdx.x == 0) tokens[s] = -1, logprobs[s] = 0.0f, ranks[s] = 0;
    return;
  }
  int token = static_cast<int>(static_cast<unsigned>(largest.key));
  const float most = row.at(token);
  if (temperature[s] > 0.0f) {
    const Draw draw{temperature[s], top_k[s], top_p[s], min_p[s],
                    uniform(seed[s], index[s], position[s])};
    token = draw_from_head(row, memory, draw, largest);
  }
  const Score score = score_token(row, memory, token, most);
  if (threadIdx.x == 0) tokens[s] = token, logprobs[s] = score.logprob, ranks[s] = score.rank;
}

}  // namespace chairlift
