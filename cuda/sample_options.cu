// Draws the next token of each row as sample.cu does, where some rows ask for more: masks, bans,
// biases, penalties, further filters, candidates. The same draw as
// rust/chairlift-kernels/src/ops/sampling.rs.
#include "chairlift/filters.cuh"
#include "chairlift/options.cuh"
#include "chairlift/philox.cuh"

namespace chairlift {

constexpr int kNotFinite = -1, kNoTokenLeft = -2, kTooComplex = -3;

// A block's shared memory.
struct OptionsMemory {
  SampleMemory common;
  Dropped dropped;
};
static_assert(sizeof(OptionsMemory) <= 40960);

// The token of a row that the lists have changed, or a negative number.
__device__ inline int draw_with_options(const NarrowedRow& row, OptionsMemory& memory,
                                        const RowOptions& options, const Draw& draw, double coin) {
  const Largest largest = find_largest(row, memory.common);
  if (!largest.is_sound) return kNoTokenLeft;
  if (draw.temperature == 0.0f) return static_cast<int>(static_cast<unsigned>(largest.key));
  if (options.top_n_sigma > 0.0f)
    drop_below_sigma(row, memory.dropped, memory.common, logit_of(largest.key),
                     options.top_n_sigma);
  const bool excludes_top = coin < static_cast<double>(options.xtc_probability);
  if (options.typical_p >= 1.0f && !excludes_top)
    return draw_from_head(row, memory.common, draw, largest);
  narrow(row, memory.dropped, memory.common, draw, options.typical_p, excludes_top,
         options.xtc_threshold, largest);
  const Largest left = find_largest(row, memory.common);
  const Weights weights = weights_at(draw.temperature, logit_of(left.key));
  return draw_token(row, memory.common, weights, draw.uniform);
}

// Writes the `count` likeliest tokens of a row in their order, and their log probabilities.
__device__ inline void write_candidates(SampleRow<float> row, SampleMemory& memory,
                                        const Largest& largest, int count, double log_total,
                                        int* ids, float* logprobs) {
  const float most = logit_of(largest.key);
  const Weights raw{most, 1.0f, 0.0f, ~Key{0}};
  row.bound = bound_of_top_k(row, memory, count, largest);
  list_candidates(row, memory, raw);
  const Key to = key_of(row.bound, 0xffffffffu);
  const Key last = select(row, memory, largest.key, to, count, Measure{true, raw});
  __syncthreads();
  if (threadIdx.x == 0) memory.num_candidates = 0;
  __syncthreads();
  Key* keys = memory.sums;  // not in use after a selection
  row.for_each_candidate(memory, [&](Key key) {
    if (key <= last) keys[atomicAdd(&memory.num_candidates, 1u)] = key;
  });
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= count) return;
  const Key key = keys[threadIdx.x];
  int place = 0;
  for (int i = 0; i < count; ++i) place += keys[i] < key;
  ids[place] = static_cast<int>(static_cast<unsigned>(key));
  logprobs[place] = static_cast<float>(static_cast<double>(logit_of(key) - most) - log_total);
}

// Draws one token per row.
//
// Grid (num_samples), 1024 threads, 40960 bytes of shared memory: a block draws for a row. The
// logits are changed while their block runs; then they are what they were.
__global__ void __launch_bounds__(1024)
    sample_options(float* logits,              // [num_samples, vocab_size]
                   int* tokens,                // [num_samples]; -1: NaN, +inf, or nothing but -inf;
                                               // -2: no token is left; -3: no mask can be computed
                   float* logprobs,            // [num_samples]: log softmax of the raw logits
                   int* ranks,                 // [num_samples]: among the raw logits, from 1
                   int* candidate_ids,         // [num_samples, max_candidates]
                   float* candidate_logprobs,  // [num_samples, max_candidates]
                   const float* temperature,   // [num_samples]; 0: greedy
                   const int* top_k,           // [num_samples]; 0: off
                   const float* top_p,         // [num_samples]; 1: off
                   const float* min_p,         // [num_samples]; 0: off
                   const long long* seed,      // [num_samples]
                   const int* index,           // [num_samples]: which of the n answers
                   const int* position,        // [num_samples]: of the token that is drawn
                   const RowOptions* rows,     // [num_samples]
                   const Entry* entries,       // [num_entries]
                   float* saved,               // [num_entries]: logits while they are changed
                   const unsigned* masks,      // [num_masks, (vocab_size + 31) / 32]
                   int max_candidates,         // at most 256
                   int vocab_size,
                   long long logits_stride) {  // elements from row to row
  OptionsMemory& memory = *reinterpret_cast<OptionsMemory*>(dynamic_shared());
  const int s = blockIdx.x;
  const RowOptions options = rows[s];
  float* own = logits + s * logits_stride;
  int* ids = candidate_ids + static_cast<long long>(s) * max_candidates;
  float* id_logprobs = candidate_logprobs + static_cast<long long>(s) * max_candidates;
  if (static_cast<int>(threadIdx.x) < max_candidates)
    ids[threadIdx.x] = 0, id_logprobs[threadIdx.x] = minus_infinity();

  const SampleRow<float> raw{own, vocab_size};
  const Largest largest = find_largest(raw, memory.common);
  int token = options.mask == -2 ? kTooComplex : kNotFinite;
  if (options.mask != -2 && largest.is_sound) {
    const long long line = static_cast<long long>(options.mask) * ((vocab_size + 31) / 32);
    change_dropped(memory.dropped,
                   [&](Dropped& by) { by.clear(options.mask < 0 ? nullptr : masks + line); });
    const NarrowedRow row{own, vocab_size, DropSome{&memory.dropped}};
    save_logits(own, entries, saved, options);
    change_logits(row, own, entries, saved, options, memory.common);
    const Draw draw{temperature[s], top_k[s], top_p[s], min_p[s],
                    uniform(seed[s], index[s], position[s])};
    const double coin = uniform(seed[s], index[s], position[s], 1);
    token = draw_with_options(row, memory, options, draw, coin);
    restore_logits(own, entries, saved, options.start, options.dry_end);
  }
  if (token < 0) {
    if (threadIdx.x == 0) tokens[s] = token, logprobs[s] = 0.0f, ranks[s] = 0;
    return;
  }
  const Score score = score_token(raw, memory.common, token, logit_of(largest.key));
  if (threadIdx.x == 0) tokens[s] = token, logprobs[s] = score.logprob, ranks[s] = score.rank;
  const int count = min(options.num_candidates, min(max_candidates, vocab_size));
  if (count > 0)
    write_candidates(raw, memory.common, largest, count, score.log_total, ids, id_logprobs);
}

}  // namespace chairlift
