// What a row asks for beside temperature, top_k, top_p and min_p: changes of its logits.
//
//   mask -> bans, no end yet -> bias -> repetition, frequency, presence -> DRY
//
// The order and the arithmetic are those of rust/chairlift-kernels/src/ops/sampling.rs, whose
// `lists` writes what is read here. The logits of a row are changed in place, and put back after
// the draw: log probabilities are of what the model gave.
#pragma once

#include "chairlift/draw.cuh"
#include "chairlift/softmax.cuh"

namespace chairlift {

// One token of a list.
struct Entry {
  int id;
  int value;  // of a bias and of DRY the bits of a float; of a count how often it is in the output

  __device__ __forceinline__ float as_float() const { return __int_as_float(value); }
};

// The numbers of a row; each section of entries begins where the one before ends.
struct RowOptions {
  int mask;  // line of the masks; -1: none, -2: the constraint cannot be computed
  int start, bans_end, ends_end, biases_end, counts_end, dry_end;
  int num_candidates;
  float repetition, presence, frequency;
  float top_n_sigma;  // 0: off
  float typical_p;    // 1: off
  float xtc_probability, xtc_threshold;
  int unused;
};
static_assert(sizeof(RowOptions) == 64);

// Calls `change(entry, logit)` for the entries of a section, then waits for all threads.
template <typename Change>
__device__ __forceinline__ void for_section(float* logits, const Entry* entries, int from, int to,
                                            Change change) {
  for (int i = from + threadIdx.x; i < to; i += kSampleThreads)
    change(entries[i], logits[entries[i].id]);
  __syncthreads();
}

// Keeps the logits that the lists change.
__device__ inline void save_logits(const float* logits, const Entry* entries, float* saved,
                                   const RowOptions& options) {
  for (int i = options.start + threadIdx.x; i < options.dry_end; i += kSampleThreads)
    saved[i] = logits[entries[i].id];
  __syncthreads();
}

// Puts back what the model gave; a token may be in several sections, each of which has saved it.
__device__ inline void restore_logits(float* logits, const Entry* entries, const float* saved,
                                      int from, int to) {
  __syncthreads();
  for (int i = from + threadIdx.x; i < to; i += kSampleThreads) logits[entries[i].id] = saved[i];
  __syncthreads();
}

// Applies the lists to a row, which sees its logits through its mask. `saved` has what they were.
template <typename Row>
__device__ void change_logits(const Row& row, float* logits, const Entry* entries,
                              const float* saved, const RowOptions& options, SampleMemory& memory) {
  const auto ban = [](const Entry&, float& logit) { logit = minus_infinity(); };
  for_section(logits, entries, options.start, options.bans_end, ban);
  if (options.bans_end < options.ends_end) {
    for_section(logits, entries, options.bans_end, options.ends_end, ban);
    // A constraint that is complete allows an end alone.
    if (!find_largest(row, memory).is_sound) {
      restore_logits(logits, entries, saved, options.bans_end, options.ends_end);
      for_section(logits, entries, options.start, options.bans_end, ban);
    }
  }
  for_section(logits, entries, options.ends_end, options.biases_end,
              [](const Entry& entry, float& logit) { logit += entry.as_float(); });
  // Each product is rounded before the difference, as on the CPU.
  for_section(logits, entries, options.biases_end, options.counts_end,
              [&](const Entry& entry, float& logit) {
                float value = logit > 0.0f ? logit / options.repetition
                                           : __fmul_rn(logit, options.repetition);
                if (entry.value > 0) {
                  value -= __fmul_rn(options.frequency, static_cast<float>(entry.value));
                  value -= options.presence;
                }
                logit = value;
              });
  for_section(logits, entries, options.counts_end, options.dry_end,
              [](const Entry& entry, float& logit) { logit -= entry.as_float(); });
}

}  // namespace chairlift
