// What decode and prefill share: the row of each query in a tile, and the tokens that it sees.
#pragma once

#include "chairlift/paged_kv.cuh"
#include "chairlift/softmax.cuh"

namespace chairlift {

// Columns of o that a block computes of heads of a size: as many as its registers hold.
template <int kHeadDim>
constexpr int kColumnsOfPart = kHeadDim > 256 ? 256 : kHeadDim;

// The first column of this block's part.
template <int kHeadDim>
__device__ __forceinline__ int first_column() {
  constexpr int kColumns = kColumnsOfPart<kHeadDim>;
  return kColumns == kHeadDim ? 0 : static_cast<int>(blockIdx.y) * kColumns;
}

// The queries of one sequence that share a KV head, packed: row = query index * group + head.
//
//   row     0         1         2         3         4         5           3 heads per KV head h
//   query   0         0         0         1         1         1
//   head    3 h       3 h + 1   3 h + 2   3 h       3 h + 1   3 h + 2
//
// So a loaded key is used by `group` rows or more, and a few queries fill a tile.
struct PackedQueries {
  int begin;        // of the sequence's tokens in the flat batch
  int num_queries;  // the last tokens of the sequence
  int seq_len;
  int kv_head;
  int group;
  int window;  // a token sees itself and the window - 1 before it; 0: all

  PackedQueries() = default;
  __device__ __forceinline__ PackedQueries(int begin, int num_queries, int seq_len, int head,
                                           int group, int window)
      : begin(begin),
        num_queries(num_queries),
        seq_len(seq_len),
        kv_head(head),
        group(group),
        window(window) {}
  __device__ __forceinline__ PackedQueries(const int* query_start_loc, const int* seq_lens,
                                           int sequence, int head, int group, int window)
      : PackedQueries(query_start_loc[sequence],
                      query_start_loc[sequence + 1] - query_start_loc[sequence], seq_lens[sequence],
                      head, group, window) {}

  __device__ __forceinline__ int num_rows() const { return num_queries * group; }
  __device__ __forceinline__ int head(int row) const { return kv_head * group + row % group; }

  // The row's elements in a tensor of [tokens, heads, kHeadDim].
  template <int kHeadDim>
  __device__ __forceinline__ long long offset(int row, long long stride) const {
    return (begin + row / group) * stride + head(row) * kHeadDim;
  }

  // The last token that the row sees: its own.
  __device__ __forceinline__ int newest(int row) const {
    return seq_len - num_queries + row / group;
  }

  // The first token that it sees.
  __device__ __forceinline__ int oldest(int row) const {
    return window == 0 ? 0 : max(0, newest(row) - window + 1);
  }
};

// Turns scores of the tensor cores into those of `update`; `factor` makes them base 2.
struct Scoring {
  float scale;    // of the product of query and key
  float softcap;  // 0: none

  __device__ __forceinline__ float factor() const {
    return softcap > 0.0f ? kLog2E : scale * kLog2E;
  }

  template <int kTiles>
  __device__ __forceinline__ void cap(float (&scores)[kTiles][4]) const {
    if (softcap <= 0.0f) return;
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] = soft_cap(scores[j][i] * scale, softcap);
  }
};

// Masks, for 16 rows from `first_row` on, the tokens that they do not see. This lane's scores are
// those of rows g and g + 8 for tokens first + 8 j + 2 t (+ 1).
template <int kTiles>
__device__ __forceinline__ void hide(float (&scores)[kTiles][4], int first,
                                     const PackedQueries& packed, int first_row) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first_row + threadIdx.x % 32 / 4 + 8 * r;
    const int oldest = packed.oldest(row), newest = packed.newest(row);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = first + 8 * j + threadIdx.x % 4 * 2 + i;
        if (token < oldest || token > newest) scores[j][2 * r + i] = minus_infinity();
      }
    }
  }
}

// Weights of 16 tokens as an operand: `mma` leaves scores in the layout of an operand.
template <typename T>
__device__ __forceinline__ void pack_weights(unsigned (&a)[4], const float (&tokens_0_7)[4],
                                             const float (&tokens_8_15)[4]) {
  a[0] = pack<T>(tokens_0_7[0], tokens_0_7[1]);
  a[1] = pack<T>(tokens_0_7[2], tokens_0_7[3]);
  a[2] = pack<T>(tokens_8_15[0], tokens_8_15[1]);
  a[3] = pack<T>(tokens_8_15[2], tokens_8_15[3]);
}

}  // namespace chairlift
