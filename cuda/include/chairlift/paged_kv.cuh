// Keys and values: where the tokens of a row lie in the cache, how a tile of them lies in shared
// memory, and how tensor cores get it from there.
#pragma once

#include "chairlift/vec.cuh"

namespace chairlift {

constexpr int kBlockSize = 16;  // tokens of a block

// One layer's view of the cache; it owns nothing.
//
//   position        0 ............ 15 | 16 ........... 31 | 32 ..
//   block table     block_table[row][0] | block_table[row][1] | block_table[row][2]
//                          |                    |
//   cache           [2, num_blocks, num_kv_heads, kBlockSize, kHeadDim]     0: keys, 1: values
//
// Block 0 is the null block: no row owns it, and no position that is read maps to it. What a layer
// has in a block is contiguous, and so are the tokens of one KV head. Where layers differ in size,
// others lie between the blocks of a layer, in the room of a whole number of its heads.
template <typename KV, int kHeadDim>
struct PagedKv {
  KV* cache;
  int num_blocks;
  int heads_per_block;  // from block to block: those of the layer, and room of other layers

  // The first key of a block, [kBlockSize, kHeadDim].
  __device__ __forceinline__ KV* keys(int block, int head) const {
    return cache +
           (static_cast<long long>(block) * heads_per_block + head) * (kBlockSize * kHeadDim);
  }

  // The first value, likewise.
  __device__ __forceinline__ KV* values(int block, int head) const {
    return keys(num_blocks + block, head);
  }
};

// Rows of kRowBytes in shared memory, in chunks of 16 bytes that are swizzled: any eight rows that
// follow each other have the same chunk in eight different groups of banks, so that ldmatrix needs
// no second access.
//
//   row 0   c0 c1 c2 c3 c4 c5 c6 c7         128 bytes a row: chunk c of row r is at c ^ (r % 8)
//   row 1   c1 c0 c3 c2 c5 c4 c7 c6
//   row 2   c2 c3 c0 c1 c6 c7 c4 c5         A row of n chunks begins n groups after the last, so
//   ...                                      that only the factor 2^k of n makes rows collide.
template <int kRowBytes>
struct Swizzled {
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kTwos = kChunks % 8 == 0 ? 3 : kChunks % 4 == 0 ? 2 : kChunks % 2 == 0;
  static constexpr int kMask = (1 << kTwos) - 1;

  // Bytes from the begin of the first row.
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * kRowBytes + 16 * (chunk ^ (row >> (3 - kTwos) & kMask));
  }

  // The offset of row + rows, chunk + chunks, given that of (row, chunk), where chunk is 0 or 1,
  // rows is a multiple of 8 and chunks even: with constants one operation and an immediate.
  // Computed from row and chunk each time, it would cost a register for each.
  static __device__ __forceinline__ int behind(int offset, int rows, int chunks) {
    return (offset ^ 16 * (chunks & kMask)) + 16 * (chunks & ~kMask) + rows * kRowBytes;
  }
};

// A tile of keys or values [tokens, kHeadDim] in shared memory, in 16 bits (KV is T) or 8.
template <typename KV, int kHeadDim>
using KvTile = Swizzled<kHeadDim * sizeof(KV)>;

// How the elements of KV meet those of T in `mma`. A product of matrices may number the summed
// coordinates, and those of the result, in any order. With 16-bit elements they keep their order.
// With 8-bit ones, ldmatrix gives a lane four neighbours instead of two; they become neighbours of
// the lane's in two steps or tiles, and query and result follow:
//
//   coordinate        0  1  2  3 | 4  5  6  7 | 8  9 10 11 | 12 13 14 15
//   summed by lane    t = 0        | t = 1      | t = 2      | t = 3         a[0] and a[2] of a
//   step result of         tiles 2 n (even coordinates) and 2 n + 1 (odd ones) of the same lanes
template <typename T, typename KV, int kHeadDim>
struct Fragments {
  static constexpr bool kIsNarrow = sizeof(KV) == 1;
  using Tile = KvTile<KV, kHeadDim>;
  static constexpr int kPairs = Tile::kChunks / 2;  // of chunks: what one ldmatrix takes
  static constexpr int kSteps = kIsNarrow ? 2 : 1;  // of 16 coordinates in a pair of chunks
  static constexpr int kTiles = kIsNarrow ? 4 : 2;  // of 8 coordinates in a pair of chunks

  // The first of the two neighbouring coordinates that a[half] and a[half + 1] hold in a step.
  static __device__ __forceinline__ int query_coordinate(int step, int half) {
    const int t = threadIdx.x % 4;
    return 16 * step + (kIsNarrow ? 4 * t + half : 2 * t + 4 * half);
  }

  // The coordinate of o[tile][0] (and [2]) with `i` 0, of o[tile][1] (and [3]) with 1.
  static __device__ __forceinline__ int result_coordinate(int tile, int i) {
    const int t = threadIdx.x % 4;
    return kIsNarrow ? tile / 2 * 16 + 4 * t + 2 * i + tile % 2 : 8 * tile + 2 * t + i;
  }

  // Keys of 16 tokens from `first` on, as b0 and b1 of [step of the pair][tokens 0-7, 8-15].
  static __device__ __forceinline__ void load_keys(unsigned (&b)[kSteps][2][2],
                                                   const unsigned char* tile, int first, int pair) {
    const int matrix = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
    unsigned r[4];
    const int place = Tile::offset(matrix / 2 * 8 + row, matrix % 2);
    load_matrices(r, tile + Tile::behind(place, first, 2 * pair));
#pragma unroll
    for (int tokens = 0; tokens < 2; ++tokens) {
      if constexpr (kIsNarrow) {
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const unsigned four = r[2 * tokens + step];
          b[step][tokens][0] = widen_pair<T>(__byte_perm(four, 0, 0x1404));
          b[step][tokens][1] = widen_pair<T>(__byte_perm(four, 0, 0x3424));
        }
      } else {
        b[0][tokens][0] = r[2 * tokens];
        b[0][tokens][1] = r[2 * tokens + 1];
      }
    }
  }

  // Values of 16 tokens from `first` on, as b0 and b1 of the pair's tiles of 8 coordinates.
  static __device__ __forceinline__ void load_values(unsigned (&b)[kTiles][2],
                                                     const unsigned char* tile, int first,
                                                     int pair) {
    const int matrix = threadIdx.x % 32 / 8, row = threadIdx.x % 8;
    unsigned r[4];
    const int place = Tile::offset(matrix % 2 * 8 + row, matrix / 2);
    load_matrices_transposed(r, tile + Tile::behind(place, first, 2 * pair));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kIsNarrow) {
        b[i / 2 * 2][i % 2] = widen_pair<T>(r[i] << 8);
        b[i / 2 * 2 + 1][i % 2] = widen_pair<T>(r[i]);
      } else {
        b[i / 2][i % 2] = r[i];
      }
    }
  }
};

}  // namespace chairlift
