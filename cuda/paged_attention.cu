// Causal attention of a ragged batch over paged keys and values, prefill chunks and decodes alike.
//
// The reference on the device: one CUDA block per query token and head, every thread with a softmax
// state of its own, merged at the end. It shows the algebra and checks the tuned kernels; it reads
// each key once per query and is not meant to be fast.
#include "chairlift/bfloat16.cuh"
#include "chairlift/paged_kv.cuh"
#include "chairlift/softmax.cuh"

namespace chairlift {

constexpr int kNumThreads = 32;

template <typename T>
struct PagedAttentionParams {
  const T* query;              // [num_tokens, num_heads, head_dim]
  PagedKv<T> kv;               // this step's keys and values are already written
  const int* rows;             // [num_rows], lines of the block table
  const int* query_start_loc;  // [num_rows + 1]
  const int* seq_lens;         // [num_rows]; the queries of a row are its last tokens
  T* out;                      // [num_tokens, num_heads, head_dim]
  int num_rows;
  int num_heads;
  int window;  // a token sees itself and the window - 1 before it; 0: all
  float scale;
};

// Index into rows of the sequence that a token of the flat batch belongs to.
inline __device__ int find_row(const int* query_start_loc, int num_rows, int token) {
  int low = 0;
  int high = num_rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (query_start_loc[middle] <= token ? low : high) = middle;
  }
  return low;
}

// The part of the keys first..last that falls to one thread. KV block b falls to thread b %
// kNumThreads whatever the batch, so that the bits of a row depend on that row alone.
template <typename T, int kHeadDim>
__device__ SoftmaxState<kHeadDim> attend(const PagedAttentionParams<T>& p, const T* query, int row,
                                         int kv_head, int first, int last, int thread) {
  auto state = SoftmaxState<kHeadDim>::empty();
  const int block_size = p.kv.block_size;
  for (int block = thread; block * block_size <= last; block += kNumThreads) {
    const int begin = max(first, block * block_size);
    const int end = min(last + 1, (block + 1) * block_size);
    for (int position = begin; position < end; ++position) {
      const T* key = p.kv.key(row, kv_head, position);
      float score = 0.0f;
      for (int i = 0; i < kHeadDim; ++i) score += float(query[i]) * float(key[i]);
      state.update(score * p.scale, p.kv.value(row, kv_head, position));
    }
  }
  return state;
}

// Grid (num_tokens, num_heads), kNumThreads threads.
template <typename T, int kHeadDim>
__global__ void paged_attention(PagedAttentionParams<T> p) {
  __shared__ SoftmaxState<kHeadDim> states[kNumThreads];
  const int token = blockIdx.x;
  const int head = blockIdx.y;
  const int thread = threadIdx.x;

  const int r = find_row(p.query_start_loc, p.num_rows, token);
  const int last = p.seq_lens[r] - (p.query_start_loc[r + 1] - token);
  const int first = p.window == 0 ? 0 : max(0, last - p.window + 1);
  const int kv_head = head / (p.num_heads / p.kv.num_kv_heads);
  const long long line = (static_cast<long long>(token) * p.num_heads + head) * kHeadDim;

  states[thread] = attend<T, kHeadDim>(p, p.query + line, p.rows[r], kv_head, first, last, thread);
  __syncthreads();
  if (thread == 0) {
    for (int other = 1; other < kNumThreads; ++other) states[0].merge(states[other]);
    states[0].normalize();
  }
  __syncthreads();
  for (int i = thread; i < kHeadDim; i += kNumThreads)
    p.out[line + i] = round_to<T>(states[0].o[i]);
}

}  // namespace chairlift
