// Attention of a warp to 16 tokens at a time, in decodes. The products are transposed: tokens and
// coordinates are the 16 rows of `mma`, queries its 8 columns. So the few queries of a decode (the
// heads of a KV head) fill the columns of one product or two, and nothing is computed for the rest:
//
//   scores^T [16 tokens, 8 queries]      = keys [16, kHeadDim] * query^T [kHeadDim, 8]
//   o^T      [16 coordinates, 8 queries] += values^T [16, 16 tokens] * weights^T [16 tokens, 8]
//
// With g = lane / 4 and t = lane % 4, a lane has queries 8 n + 2 t and 8 n + 2 t + 1 of tile n.
#pragma once

#include "chairlift/attention.cuh"

namespace chairlift {

// How 16-bit or 8-bit elements become the operand with 16 rows; the coordinates of 8-bit ones are
// numbered as `Fragments` says.
template <typename T, typename KV, int kColumns>
struct TileOperand {
  static constexpr bool kIsNarrow = sizeof(KV) == 1;
  using Tile = KvTile<KV, kColumns>;
  static constexpr int kPairs = Tile::kChunks / 2;  // of chunks: what one ldmatrix takes
  static constexpr int kSteps = kIsNarrow ? 2 : 1;  // of 16 coordinates in a pair of chunks

  // Keys of 16 tokens from `first` on: rows are tokens, columns the coordinates of a step.
  static __device__ __forceinline__ void load_keys(unsigned (&a)[kSteps][4],
                                                   const unsigned char* tile, int first, int pair) {
    const int matrix = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
    unsigned r[4];
    const int place = Tile::offset(matrix % 2 * 8 + row, matrix / 2);
    load_matrices(r, tile + Tile::behind(place, first, 2 * pair));
    if constexpr (kIsNarrow) {
#pragma unroll
      for (int step = 0; step < 2; ++step)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const unsigned four = r[2 * step + half];
          a[step][half] = widen_pair<T>(__byte_perm(four, 0, 0x1404));
          a[step][half + 2] = widen_pair<T>(__byte_perm(four, 0, 0x3424));
        }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[0][i] = r[i];
    }
  }

  // Values of 16 tokens from `first` on: rows are 16 coordinates, columns tokens.
  static __device__ __forceinline__ void load_values(unsigned (&a)[kSteps][4],
                                                     const unsigned char* tile, int first,
                                                     int pair) {
    const int matrix = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
    unsigned r[4];
    const int place = Tile::offset(matrix / 2 * 8 + row, matrix % 2);
    load_matrices_transposed(r, tile + Tile::behind(place, first, 2 * pair));
    if constexpr (kIsNarrow) {
#pragma unroll
      for (int step = 0; step < 2; ++step)
#pragma unroll
        for (int tokens = 0; tokens < 2; ++tokens) {
          a[step][2 * tokens] = widen_pair<T>(r[2 * tokens + step] << 8);
          a[step][2 * tokens + 1] = widen_pair<T>(r[2 * tokens + step]);
        }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[0][i] = r[i];
    }
  }

  // The coordinate of o[tile][.][2 * half] and of the one behind it.
  static __device__ __forceinline__ int coordinate(int tile, int half) {
    const int g = threadIdx.x % 32 / 4;
    return 16 * tile + (kIsNarrow ? 2 * g + half : g + 8 * half);
  }
};

// The queries of an item as the operand with 8 columns, the same for all warps: in registers, or,
// where o leaves no room for them, in shared memory.
template <typename T, typename KV, int kHeadDim, int kQueryTiles>
struct QueryOperand {
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kIsShared = kHeadDim > 128;
  static constexpr int kWords = 2 * kQueryTiles;  // of a step
  unsigned registers[kIsShared ? 1 : kSteps][kWords];
  unsigned* shared;  // [kSteps][kWords][32 lanes]

  __device__ __forceinline__ void load(const T* query, long long stride,
                                       const PackedQueries& packed) {
    const int g = threadIdx.x % 32 / 4;
    const T* row[kQueryTiles];
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      row[n] = nullptr;
      if (g + 8 * n < packed.num_rows())
        row[n] = query + packed.offset<kHeadDim>(g + 8 * n, stride);
    }
    // Where the operand is shared, each warp brings some of it.
    const int warp = kIsShared ? threadIdx.x / 32 : 0;
    const int num_warps = kIsShared ? blockDim.x / 32 : 1;
#pragma unroll
    for (int step = warp; step < kSteps; step += num_warps) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const int coordinate = Fragments<T, KV, kHeadDim>::query_coordinate(step, i % 2 * 2);
        const T* from = row[i / 2];
        const unsigned word =
            from == nullptr ? 0 : *reinterpret_cast<const unsigned*>(from + coordinate);
        if constexpr (kIsShared)
          shared[(step * kWords + i) * 32 + threadIdx.x % 32] = word;
        else
          registers[step][i] = word;
      }
    }
    if constexpr (kIsShared) __syncthreads();  // the reads of the last item ended before its merge
  }

  __device__ __forceinline__ unsigned get(int step, int i) const {
    if constexpr (kIsShared)
      return shared[(step * kWords + i) * 32 + threadIdx.x % 32];
    else
      return registers[step][i];
  }
};

// scores = keys * query^T for 16 tokens of a slot: those of tokens g (and, behind 2, g + 8).
template <typename T, typename KV, int kHeadDim, int kQueryTiles>
__device__ __forceinline__ void score(float (&scores)[kQueryTiles][4],
                                      const QueryOperand<T, KV, kHeadDim, kQueryTiles>& query,
                                      const unsigned char* keys, int first) {
  using Operand = TileOperand<T, KV, kHeadDim>;
  // Even and odd pairs apart: a product does not wait for the one before it.
  float sums[2][kQueryTiles][4] = {};
#pragma unroll
  for (int pair = 0; pair < Operand::kPairs; ++pair) {
    unsigned a[Operand::kSteps][4];
    Operand::load_keys(a, keys, first, pair);
#pragma unroll
    for (int step = 0; step < Operand::kSteps; ++step)
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        const int at = pair * Operand::kSteps + step;
        mma<T>(sums[pair % 2][n], a[step], query.get(at, 2 * n), query.get(at, 2 * n + 1));
      }
  }
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = sums[0][n][i] + sums[1][n][i];
}

// Masks what queries do not see of the 16 tokens from `first` on; most slots are seen as a whole.
template <int kQueryTiles>
__device__ __forceinline__ void hide(float (&scores)[kQueryTiles][4], int first,
                                     const PackedQueries& packed) {
  const int last_row = packed.num_rows() - 1;
  if (first >= packed.oldest(last_row) && first + kBlockSize - 1 <= packed.newest(0)) return;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * n + threadIdx.x % 4 * 2 + i;
      const int oldest = packed.oldest(row), newest = packed.newest(row);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = first + threadIdx.x % 32 / 4 + 8 * half;
        if (token < oldest || token > newest) scores[n][2 * half + i] = minus_infinity();
      }
    }
}

// The online softmax (`SoftmaxState`) of 8 kQueryTiles queries, spread over a warp.
template <int kColumns, int kQueryTiles>
struct SoftmaxColumns {
  float m[kQueryTiles][2];
  float d[kQueryTiles][2];  // of this lane's tokens alone, until `share`
  float o[kColumns / 16][kQueryTiles][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) m[n][i] = minus_infinity(), d[n][i] = 0.0f;
#pragma unroll
      for (int tile = 0; tile < kColumns / 16; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[tile][n][i] = 0.0f;
    }
  }

  // Adds 16 tokens: turns their scores, still to be multiplied by `factor` > 0, into weights. The
  // caller then adds weights * values to o. A token that a query does not see has score -inf.
  __device__ __forceinline__ void update(float (&scores)[kQueryTiles][4], float factor) {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float largest = fmaxf(scores[n][i], scores[n][2 + i]);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
          largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
        const float m_new = fmaxf(m[n][i], largest * factor);
        const float base = m_new == minus_infinity() ? 0.0f : m_new;  // no token seen yet
        const float scale = exp2_approximate(m[n][i] - base);
#pragma unroll
        for (int half = 0; half < 4; half += 2)
          scores[n][half + i] = exp2_approximate(fmaf(scores[n][half + i], factor, -base));
        m[n][i] = m_new;
        d[n][i] = d[n][i] * scale + (scores[n][i] + scores[n][2 + i]);
#pragma unroll
        for (int tile = 0; tile < kColumns / 16; ++tile)
          o[tile][n][i] *= scale, o[tile][n][2 + i] *= scale;
      }
  }

  // Sums d over lanes: every lane has the whole d of its queries.
  __device__ __forceinline__ void share() {
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2)
          d[n][i] += __shfl_xor_sync(0xffffffffu, d[n][i], lanes);
  }
};

// o += weights * values for 16 tokens of a slot; the weights are what `update` made of the scores.
template <typename T, typename KV, int kColumns, int kQueryTiles>
__device__ __forceinline__ void add_values(SoftmaxColumns<kColumns, kQueryTiles>& state,
                                           const float (&weights)[kQueryTiles][4],
                                           const unsigned char* values, int first) {
  using Operand = TileOperand<T, KV, kColumns>;
  // A lane has two queries of a token, the operand two tokens of a query.
  unsigned b[kQueryTiles][2];
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      b[n][half] = transpose_matrix(pack<T>(weights[n][2 * half], weights[n][2 * half + 1]));
#pragma unroll
  for (int pair = 0; pair < Operand::kPairs; ++pair) {
    unsigned a[Operand::kSteps][4];
    Operand::load_values(a, values, first, pair);
#pragma unroll
    for (int step = 0; step < Operand::kSteps; ++step)
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n)
        mma<T>(state.o[pair * Operand::kSteps + step][n], a[step], b[n][0], b[n][1]);
  }
}

}  // namespace chairlift
