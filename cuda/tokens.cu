// Sampled tokens stay on the device: a step takes the ids that the one before it drew, while the
// host does not know them yet.
#include "chairlift/vec.cuh"

namespace chairlift {

// Replaces ids of -1 by the last token of their row.
//
// Grid (ceil(num_rows / 4)), 128 threads, no shared memory: a warp has a row.
__global__ void __launch_bounds__(128)
    gather_tokens(int* input_ids,              // [num_tokens]
                  const int* last_token,       // [max_num_seqs]
                  const int* rows,             // [num_rows], lines of last_token
                  const int* query_start_loc,  // [num_rows + 1]
                  int num_rows) {
  const int r = blockIdx.x * 4 + threadIdx.x / 32;
  if (r >= num_rows) return;
  const int token = last_token[rows[r]];
  for (int i = query_start_loc[r] + threadIdx.x % 32; i < query_start_loc[r + 1]; i += 32)
    if (input_ids[i] == -1) input_ids[i] = token;
}

// Stores what was drawn as the last token of its row, unless the draw failed.
//
// Grid (ceil(num_samples / 128)), 128 threads, no shared memory.
__global__ void __launch_bounds__(128)
    scatter_tokens(int* last_token,         // [max_num_seqs]
                   const int* tokens,       // [num_samples], from `sample`
                   const int* sample_rows,  // [num_samples]: a row, or negative: padding
                   int num_samples) {
  const int s = blockIdx.x * blockDim.x + threadIdx.x;
  if (s < num_samples && sample_rows[s] >= 0 && tokens[s] >= 0)
    last_token[sample_rows[s]] = tokens[s];
}

}  // namespace chairlift
