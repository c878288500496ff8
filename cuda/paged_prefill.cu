// Causal attention of chunks of prompts over the paged cache, on tensor cores.
//
// FlashAttention-2 (Dao, 2023) over block tables. A block of threads has kRows packed rows (query,
// head) of one sequence and KV head, and walks the tiles of tokens that they see:
//
//                 tokens    0 ....  63 | 64 ... 127 | 128 .. 191 |
//   rows 0 .. kRows-1       [  whole  ] [  whole   ] [ diagonal ]       tiles lie at absolute
//   the next rows           [  whole  ] [  whole   ] [  whole   ] ...   positions: bits do not
//                                                                       depend on the chunk
//
// One tile of keys and one of values are in shared memory. While scores are computed, the values
// arrive; while values are added up, the next keys do:
//
//   copies    |  values 0  |   keys 1   |  values 1  |   keys 2   |
//   compute   |  scores 0  |    o 0     |  scores 1  |    o 1     |
//            ^            ^            ^            ^                barriers
//
// The weights never leave the registers: `mma` reads its own scores as an operand.
//
// Of heads of 512 numbers o does not fit in the registers of a warp: a block computes one half of
// its columns (blockIdx.y), and the scores are computed for each half.
#include "chairlift/attention.cuh"

namespace chairlift {

// How a block shares its rows: 4 warps of kRows / 4 rows each, which are 16 or twice 16.
template <typename T, typename KV, int kHeadDim, int kRows>
struct PrefillShape {
  static constexpr int kNumThreads = 128;
  static constexpr int kTokens = kHeadDim > 256 ? 16 : kHeadDim > 128 ? 32 : 64;  // of a tile
  static constexpr int kFragments = kRows / 64;              // of 16 rows, of a warp
  static constexpr int kColumns = kColumnsOfPart<kHeadDim>;  // of values, and of o
  static constexpr int kQueryBytes = kRows * kHeadDim * 2;
  static constexpr int kKeyBytes = kTokens * kHeadDim * sizeof(KV);
  static constexpr int kSharedBytes = kQueryBytes + kKeyBytes + kTokens * kColumns * sizeof(KV);
  static_assert(kFragments * kColumns <= 256, "o must fit in registers");
};

// Copies tiles of keys or values of one sequence and KV head.
template <typename KV, int kHeadDim, int kTokens>
struct TileReader {
  static constexpr int kBlocks = kTokens / kBlockSize;
  PagedKv<const KV, kHeadDim> kv;
  const int* block_table;  // of the row
  int kv_head;
  int oldest;  // tokens oldest .. newest are seen by some row
  int newest;

  // Lane l gets the (l % kBlocks)-th block of a tile; the null block where there is none.
  __device__ __forceinline__ int blocks_of(int tile) const {
    const int block = tile * kBlocks + threadIdx.x % kBlocks;
    const bool is_seen = block * kBlockSize <= newest && (block + 1) * kBlockSize > oldest;
    return is_seen ? block_table[block] : 0;
  }

  // Starts the copy of a tile. Tokens that no row sees become zeros: what is in the cache there may
  // be anything, and 0 * NaN is NaN.
  template <bool kIsValues>
  __device__ __forceinline__ void copy(unsigned char* to, int tile, int blocks) const {
    constexpr int kColumns = kColumnsOfPart<kHeadDim>;
    using Tile = KvTile<KV, kIsValues ? kColumns : kHeadDim>;
    constexpr int kRowChunks = KvTile<KV, kHeadDim>::kChunks;  // in the cache
    const int first_chunk = kIsValues ? first_column<kHeadDim>() * sizeof(KV) / 16 : 0;
#pragma unroll 2  // all turns at once would keep their addresses in registers that scores need
    for (int turn = 0; turn < kTokens * Tile::kChunks / 128; ++turn) {
      const int i = 128 * turn + threadIdx.x;
      const int row = i / Tile::kChunks, chunk = i % Tile::kChunks;
      const int block = __shfl_sync(0xffffffffu, blocks, row / kBlockSize);
      const KV* from = kIsValues ? kv.values(block, kv_head) : kv.keys(block, kv_head);
      const int token = tile * kTokens + row;
      copy_async(to + Tile::offset(row, chunk),
                 from + (row % kBlockSize * kRowChunks + first_chunk + chunk) * (16 / sizeof(KV)),
                 token >= oldest && token <= newest);
    }
    commit_copies();
  }
};

// The block's queries in shared memory, [kRows, kHeadDim], as ldmatrix reads them; later the
// output. A warp touches its own rows alone.
template <typename T, typename KV, int kHeadDim, int kRows>
struct QueryTile {
  using Tile = Swizzled<kHeadDim * 2>;
  static constexpr int kWarpRows = kRows / 4;
  unsigned char* memory;

  // Where a warp's lanes find 16 bytes of the first kChunks * 16 of its rows, turn by turn.
  template <int kChunks, typename Visit>
  static __device__ __forceinline__ void for_each_chunk(Visit visit) {
#pragma unroll 4
    for (int turn = 0; turn < kWarpRows * kChunks / 32; ++turn) {
      const int i = 32 * turn + threadIdx.x % 32;
      visit(threadIdx.x / 32 * kWarpRows + i / kChunks, i % kChunks);
    }
  }

  // Pair p of neighbouring coordinates of 16, where `mma` reads it (Fragments).
  static __device__ __forceinline__ int place_of_pair(int p) {
    return sizeof(KV) == 1 ? p / 2 + p % 2 * 4 : p;
  }

  __device__ __forceinline__ void load(const T* query, long long stride,
                                       const PackedQueries& packed, int first_row) const {
    for_each_chunk<Tile::kChunks>([&](int row, int chunk) {
      uint4 words = {0, 0, 0, 0};
      if (first_row + row < packed.num_rows())
        words = Vec<T>::load(query + packed.offset<kHeadDim>(first_row + row, stride) + 8 * chunk)
                    .words;
      if constexpr (sizeof(KV) == sizeof(T)) {
        *reinterpret_cast<uint4*>(memory + Tile::offset(row, chunk)) = words;
      } else {
        const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          const int place = place_of_pair(chunk % 2 * 4 + p);
          const int to = Tile::offset(row, chunk / 2 * 2 + place / 4) + place % 4 * 4;
          *reinterpret_cast<unsigned*>(memory + to) = pairs[p];
        }
      }
    });
    __syncwarp();
  }

  // The operand of 16 of the warp's rows, at 16 coordinates.
  __device__ __forceinline__ void get(unsigned (&a)[4], int fragment, int step) const {
    const int matrix = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
    const int row = threadIdx.x / 32 * kWarpRows + matrix % 2 * 8 + line;
    const int place = Tile::offset(row, matrix / 2);
    load_matrices(a, memory + Tile::behind(place, 16 * fragment, 2 * step));
  }

  __device__ __forceinline__ void put(int row, int coordinate, float value) const {
    const int at = Tile::offset(row, coordinate / 8) + coordinate % 8 * 2;
    *reinterpret_cast<T*>(memory + at) = round_to<T>(value);
  }

  // Writes the block's part of the output.
  __device__ __forceinline__ void store(T* out, long long stride, const PackedQueries& packed,
                                        int first_row) const {
    constexpr int kColumns = kColumnsOfPart<kHeadDim>;
    __syncwarp();
    for_each_chunk<kColumns / 8>([&](int row, int chunk) {
      if (first_row + row >= packed.num_rows()) return;
      T* to = out + packed.offset<kHeadDim>(first_row + row, stride) + first_column<kHeadDim>() +
              8 * chunk;
      const uint4 words = *reinterpret_cast<const uint4*>(memory + Tile::offset(row, chunk));
      Vec<T>{words}.store(to);
    });
  }
};

// Scores of a warp's rows and a tile of keys.
template <typename T, typename KV, int kHeadDim, int kRows, int kFragments, int kTokens>
__device__ __forceinline__ void score(float (&scores)[kFragments][kTokens / 8][4],
                                      const QueryTile<T, KV, kHeadDim, kRows>& query,
                                      const unsigned char* keys) {
  using F = Fragments<T, KV, kHeadDim>;
#pragma unroll
  for (int f = 0; f < kFragments; ++f)
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) scores[f][i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int pair = 0; pair < F::kPairs; ++pair) {
    unsigned a[kFragments][F::kSteps][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int step = 0; step < F::kSteps; ++step)
        query.get(a[f][step], f, pair * F::kSteps + step);
#pragma unroll
    for (int first = 0; first < kTokens; first += 16) {
      unsigned b[F::kSteps][2][2];
      F::load_keys(b, keys, first, pair);
#pragma unroll
      for (int step = 0; step < F::kSteps; ++step)
#pragma unroll
        for (int f = 0; f < kFragments; ++f)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            mma<T>(scores[f][first / 8 + half], a[f][step], b[step][half][0], b[step][half][1]);
    }
  }
}

// o += weights * values for a tile; the weights of all the warp's rows use a value once it is
// loaded.
template <typename T, typename KV, int kColumns, int kFragments, int kTokens>
__device__ __forceinline__ void add_tile(SoftmaxFragment<kColumns> (&states)[kFragments],
                                         const unsigned (&weights)[kFragments][kTokens / 16][4],
                                         const unsigned char* values) {
  using F = Fragments<T, KV, kColumns>;
#pragma unroll
  for (int first = 0; first < kTokens; first += 16) {
#pragma unroll
    for (int pair = 0; pair < F::kPairs; ++pair) {
      unsigned b[F::kTiles][2];
      F::load_values(b, values, first, pair);
#pragma unroll
      for (int i = 0; i < F::kTiles; ++i)
#pragma unroll
        for (int f = 0; f < kFragments; ++f)
          mma<T>(states[f].o[pair * F::kTiles + i], weights[f][first / 16], b[i][0], b[i][1]);
    }
  }
}

// Ends the attention of a warp's rows and writes them.
template <typename T, typename KV, int kHeadDim, int kRows, int kFragments, int kColumns>
__device__ __forceinline__ void write_rows(SoftmaxFragment<kColumns> (&states)[kFragments],
                                           const QueryTile<T, KV, kHeadDim, kRows>& tile, T* out,
                                           long long stride, const PackedQueries& packed,
                                           int first_row, const float* sinks, float value_scale) {
  const int g = threadIdx.x % 32 / 4;
  __syncwarp();  // all lanes have read their queries for the last time
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    SoftmaxFragment<kColumns>& state = states[f];
    state.share();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = threadIdx.x / 32 * (kRows / 4) + 16 * f + 8 * r + g;
      SoftmaxState<1> factor{state.m[r], state.d[r], {1.0f}};  // what becomes of a 1 in o
      if (sinks != nullptr && first_row + row < packed.num_rows())
        factor.merge(SoftmaxState<1>::sink(sinks[packed.head(first_row + row)] * kLog2E));
      factor.normalize();
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          tile.put(row, Fragments<T, KV, kColumns>::result_coordinate(n, i),
                   state.o[n][2 * r + i] * (factor.o[0] * value_scale));
    }
  }
  tile.store(out, stride, packed, first_row);
}

// Attention of kRows packed rows per block: rows are (query, head) pairs of one KV head.
//
// Grid (num_tiles, parts of o), 128 threads, bytes of shared memory as PrefillShape says. There is
// one part (head_dim 512: 2), and kRows is 64 or 128 (head_dim 256, 512: 64); it changes no bits.
// The list begins with the longest tiles, so that the last ones are short.
template <typename T, typename KV, int kHeadDim, int kRows>
__global__ void __launch_bounds__(128)
    paged_prefill(T* out,                      // [tokens, num_heads, kHeadDim]
                  const T* query,              // [tokens, num_heads, kHeadDim]
                  const KV* cache,             // [2, num_blocks, num_kv_heads, 16, kHeadDim]
                  const int* block_table,      // [*, max_blocks_per_row]
                  const int* rows,             // [num_seqs], lines of the block table
                  const int* query_start_loc,  // [num_seqs + 1]
                  const int* seq_lens,         // [num_seqs]; the queries are the last tokens
                  const int* tiles,        // [num_tiles, 3]: sequence (index into rows; negative:
                                           // no work), KV head, first packed row (a multiple of
                                           // kRows)
                  const float* sinks,      // [num_heads] or null
                  const float* kv_scales,  // [2, num_kv_heads] or null: 1
                  long long out_stride,    // elements from token to token
                  long long query_stride, int num_heads, int num_kv_heads, int num_blocks,
                  int heads_per_block,  // of the cache: num_kv_heads, and room of other layers
                  int max_blocks_per_row,
                  int window,  // a token sees itself and the window - 1 before it; 0: all
                  float scale, float softcap) {
  using Shape = PrefillShape<T, KV, kHeadDim, kRows>;
  constexpr int kTokens = Shape::kTokens, kFragments = Shape::kFragments;
  constexpr int kColumns = Shape::kColumns;
  unsigned char* keys = dynamic_shared() + Shape::kQueryBytes;
  unsigned char* values = keys + Shape::kKeyBytes;

  // Read when it is needed: registers are short.
  const int* tile = tiles + 3 * static_cast<long long>(blockIdx.x);
  if (tile[0] < 0) return;
  const auto packed_queries = [&] {
    return PackedQueries(query_start_loc, seq_lens, tile[0], tile[1], num_heads / num_kv_heads,
                         window);
  };
  const PackedQueries packed = packed_queries();
  const int kv_head = tile[1], first_row = tile[2];
  const int last_row = min(first_row + kRows, packed.num_rows()) - 1;
  const TileReader<KV, kHeadDim, kTokens> reader{
      {cache, num_blocks, heads_per_block},
      block_table + static_cast<long long>(rows[tile[0]]) * max_blocks_per_row,
      kv_head,
      packed.oldest(first_row),
      packed.newest(last_row)};

  int t = reader.oldest / kTokens;
  const int last_tile = reader.newest / kTokens;
  // Tiles of which every row sees every token.
  const int first_whole = (packed.oldest(last_row) + kTokens - 1) / kTokens;
  const int end_of_whole = (packed.newest(first_row) + 1) / kTokens;
  int blocks = reader.blocks_of(t);
  reader.template copy<false>(keys, t, blocks);
  const QueryTile<T, KV, kHeadDim, kRows> queries{dynamic_shared()};
  queries.load(query, query_stride, packed, first_row);

  SoftmaxFragment<kColumns> states[kFragments];
#pragma unroll
  for (int f = 0; f < kFragments; ++f) states[f].clear();
  const Scoring scoring{scale * (kv_scales == nullptr ? 1.0f : kv_scales[kv_head]), softcap};

  for (; t <= last_tile; ++t) {
    wait_copies<0>();
    __syncthreads();  // the keys are there; no warp reads the values of the last tile any more
    reader.template copy<true>(values, t, blocks);
    if (t < last_tile) blocks = reader.blocks_of(t + 1);
    float scores[kFragments][kTokens / 8][4];
    score<T, KV, kHeadDim, kRows, kFragments, kTokens>(scores, queries, keys);
    wait_copies<0>();
    __syncthreads();  // the values are there; no warp reads these keys any more
    if (t < last_tile) reader.template copy<false>(keys, t + 1, blocks);

    unsigned weights[kFragments][kTokens / 16][4];
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      scoring.cap(scores[f]);
      if (t < first_whole || t >= end_of_whole) {
        const int row = tile[2] + threadIdx.x / 32 * (kRows / 4) + 16 * f;
        hide(scores[f], t * kTokens, packed_queries(), row);
      }
      states[f].update(scores[f], scoring.factor());
#pragma unroll
      for (int i = 0; i < kTokens / 16; ++i)  // at once: in half of the registers
        pack_weights<T>(weights[f][i], scores[f][2 * i], scores[f][2 * i + 1]);
    }
    add_tile<T, KV, kColumns, kFragments, kTokens>(states, weights, values);
  }

  const float value_scale = kv_scales == nullptr ? 1.0f : kv_scales[num_kv_heads + kv_head];
  write_rows<T, KV, kHeadDim, kRows>(states, queries, out, out_stride, packed_queries(), tile[2],
                                     sinks, value_scale);
}

}  // namespace chairlift
