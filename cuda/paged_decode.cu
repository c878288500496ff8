// Attention of a few new tokens per sequence over the paged cache, at the memory's speed.
//
// The keys and values of a sequence are cut into splits of fixed length at absolute positions
// (Flash-Decoding, 2023), so that long sequences spread over the GPU and the bits of a sequence do
// not depend on its batch. A work item is one split of one KV head:
//
//   sequence 0, KV head 0   |== split 0 ==|== split 1 ==|= split 2 |    3 items, consecutive
//   sequence 0, KV head 1   |== split 0 ==|== split 1 ==|= split 2 |
//   sequence 1, KV head 0   |= split 0 |                                1 item: written directly
//
// A block takes every gridDim.x-th item. Its warps share an item by blocks of 16 tokens; each has
// a ring of slots in shared memory of its own, filled by asynchronous copies that run ahead over
// the ends of items. No barrier but at the end of an item:
//
//             split     | 0  15|16  31|32  47|48  63|64  79|80 ..
//             warp      |  0   |  1   |  2   |  3   |  0   |  1
//
//   warp 0:   ring      [ 0 .. 15 ][ 64 .. 79 ][ 128 .. 143 ]     keys and values of 16 tokens each
//                         in use     in flight    in flight
//
// All query heads of the KV head are rows of one tensor-core tile, so that a key is read once:
//
//   scores  [16 rows, 16 tokens] = query [16, kHeadDim] * keys [16, kHeadDim]^T
//   o       [16 rows, kHeadDim] += weights [16, 16] * values [16, kHeadDim]
//
// Of heads of 512 numbers o does not fit in the registers of a warp: a block computes one half of
// its columns (blockIdx.y), and the scores are computed for each half.
#include "chairlift/attention.cuh"
#include "chairlift/decode_split.cuh"

namespace chairlift {

// What a block reads next: a tile (kTileTokens of a split) of an item of the work list.
template <typename KV, int kHeadDim>
struct Cursor {
  using Shape = DecodeShape<KV, kHeadDim>;
  int index;  // in the work list
  int tile;   // of the split
  Split split;

  // The first tile with a visible token of item `index`, if there is one.
  __device__ __forceinline__ void begin(const DecodeBatch& batch, int item) {
    index = item;
    if (!is_valid(batch)) return;
    split = Split(batch, item);
    tile = (split.oldest - split.begin) / Shape::kTileTokens;
  }
  __device__ __forceinline__ bool is_valid(const DecodeBatch& batch) const {
    return index < batch.num_work;
  }
  __device__ __forceinline__ bool is_last_tile() const {
    return split.begin + (tile + 1) * Shape::kTileTokens >= split.end;
  }
  // The first token of this warp's slot.
  __device__ __forceinline__ int first_token() const {
    return split.begin + tile * Shape::kTileTokens + threadIdx.x / 32 * Shape::kSlotTokens;
  }
};

// Reads ahead: starts the copies of a warp's slots, one tile at a time.
template <typename KV, int kHeadDim>
struct Reader {
  using Shape = DecodeShape<KV, kHeadDim>;
  Cursor<KV, kHeadDim> at;
  int blocks;  // lane l: the l-th block of the split

  __device__ __forceinline__ void begin(const DecodeBatch& batch, int item) {
    at.begin(batch, item);
    if (!at.is_valid(batch)) return;
    const int block = at.split.begin / kBlockSize + threadIdx.x % 32;
    blocks = block * kBlockSize < at.split.end ? batch.block_of(at.split.sequence, block) : 0;
  }

  // Copies the warp's part of the next tile to `slot`, as one group. Tokens that no query sees
  // become zeros: what is in the cache there may be anything, and 0 * NaN is NaN.
  __device__ __forceinline__ void copy_next(const DecodeBatch& batch,
                                            const PagedKv<const KV, kHeadDim>& kv,
                                            unsigned char* slot) {
    if (at.is_valid(batch)) {
      const Split& split = at.split;
#pragma unroll
      for (int part = 0; part < Shape::kSlotTokens / kBlockSize; ++part) {
        const int first = at.first_token() + part * kBlockSize;
        const int block = __shfl_sync(0xffffffffu, blocks, (first - split.begin) / kBlockSize);
        if (first >= split.end || first + kBlockSize <= split.oldest) continue;
        const int row = part * kBlockSize;
        copy_block<kHeadDim>(slot, row, kv.keys(block, split.kv_head), first);
        copy_block<Shape::kColumns>(slot + Shape::kKeyBytes, row,
                                    kv.values(block, split.kv_head) + first_column<kHeadDim>(),
                                    first);
      }
      if (!at.is_last_tile())
        ++at.tile;
      else
        begin(batch, at.index + gridDim.x);
    }
    commit_copies();  // also an empty group, so that waits count tiles
  }

  // Copies kColumns numbers of each token of a block, whose first token is `first`, to the rows of
  // a tile from `row` on.
  template <int kColumns>
  __device__ __forceinline__ void copy_block(unsigned char* tile, int row, const KV* from,
                                             int first) const {
    using Tile = KvTile<KV, kColumns>;
#pragma unroll
    for (int turn = 0; turn < kBlockSize * Tile::kChunks / 32; ++turn) {
      const int i = 32 * turn + threadIdx.x % 32;
      const int token = i / Tile::kChunks, chunk = i % Tile::kChunks;
      const bool is_seen = first + token >= at.split.oldest && first + token < at.split.end;
      copy_async(tile + Tile::offset(row + token, chunk),
                 from + token * kHeadDim + chunk * (16 / sizeof(KV)), is_seen);
    }
  }
};

// The queries of an item as operands of `mma`, the same for all warps: in registers, or, where o
// leaves no room for them, in shared memory.
template <typename T, typename KV, int kHeadDim>
struct QueryOperand {
  static constexpr int kSteps = kHeadDim / 16;
  static constexpr bool kIsShared = DecodeShape<KV, kHeadDim>::kQueryBytes > 0;
  unsigned registers[kIsShared ? 1 : kSteps][4];
  uint4* shared;  // [kSteps][32 lanes]

  __device__ __forceinline__ void load(const T* query, long long stride,
                                       const PackedQueries& packed) {
    const int g = threadIdx.x % 32 / 4;
    const T* row[2] = {nullptr, nullptr};
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (g + 8 * r < packed.num_rows())
        row[r] = query + packed.offset<kHeadDim>(g + 8 * r, stride);
    // Where the operand is shared, each warp brings some of it.
    const int warp = kIsShared ? threadIdx.x / 32 : 0;
    const int num_warps = kIsShared ? blockDim.x / 32 : 1;
#pragma unroll
    for (int step = warp; step < kSteps; step += num_warps) {
      unsigned a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int coordinate = Fragments<T, KV, kHeadDim>::query_coordinate(step, i / 2 * 2);
        const T* from = row[i % 2];
        a[i] = from == nullptr ? 0 : *reinterpret_cast<const unsigned*>(from + coordinate);
      }
      if constexpr (kIsShared) {
        shared[step * 32 + threadIdx.x % 32] = {a[0], a[1], a[2], a[3]};
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) registers[step][i] = a[i];
      }
    }
    if constexpr (kIsShared) __syncthreads();  // the reads of the last item ended before its merge
  }

  __device__ __forceinline__ void get(unsigned (&a)[4], int step) const {
    if constexpr (kIsShared) {
      const uint4 words = shared[step * 32 + threadIdx.x % 32];
      a[0] = words.x, a[1] = words.y, a[2] = words.z, a[3] = words.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = registers[step][i];
    }
  }
};

// scores = query * keys^T for 16 tokens of a slot.
template <typename T, typename KV, int kHeadDim>
__device__ __forceinline__ void score(float (&scores)[2][4],
                                      const QueryOperand<T, KV, kHeadDim>& query,
                                      const unsigned char* keys, int first) {
  using F = Fragments<T, KV, kHeadDim>;
#pragma unroll
  for (int i = 0; i < 8; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll
  for (int pair = 0; pair < F::kPairs; ++pair) {
    unsigned b[F::kSteps][2][2];
    F::load_keys(b, keys, first, pair);
#pragma unroll
    for (int step = 0; step < F::kSteps; ++step) {
      unsigned a[4];
      query.get(a, pair * F::kSteps + step);
      mma<T>(scores[0], a, b[step][0][0], b[step][0][1]);
      mma<T>(scores[1], a, b[step][1][0], b[step][1][1]);
    }
  }
}

// o += weights * values for 16 tokens of a slot; the weights are what `update` made of the scores.
template <typename T, typename KV, int kColumns>
__device__ __forceinline__ void add_values(SoftmaxFragment<kColumns>& state,
                                           const float (&weights)[2][4],
                                           const unsigned char* values, int first) {
  using F = Fragments<T, KV, kColumns>;
  unsigned a[4];
  pack_weights<T>(a, weights[0], weights[1]);
#pragma unroll
  for (int pair = 0; pair < F::kPairs; ++pair) {
    unsigned b[F::kTiles][2];
    F::load_values(b, values, first, pair);
#pragma unroll
    for (int i = 0; i < F::kTiles; ++i) mma<T>(state.o[pair * F::kTiles + i], a, b[i][0], b[i][1]);
  }
}

// Attention of sequences with at most 16 rows (num_queries * group) over the cache.
//
// Grid (any number of blocks, parts of o): best as many blocks as fit the GPU at once. Parts,
// threads and bytes of shared memory as DecodeShape says: one part (head_dim 512: 2), 128 threads
// (head_dim 256: 64, 512: 32) and, for head_dim 64, 96, 128, 256, 512: 66064, 74256, 98832, 74000,
// 65680. `out` of a sequence without work items is left alone.
template <typename T, typename KV, int kHeadDim>
__global__ void __launch_bounds__(DecodeShape<KV, kHeadDim>::kNumThreads)
    paged_decode(T* out,                      // [tokens, num_heads, kHeadDim]
                 const T* query,              // [tokens, num_heads, kHeadDim]
                 const KV* cache,             // [2, num_blocks, num_kv_heads, 16, kHeadDim]
                 const int* block_table,      // [*, max_blocks_per_row]
                 const int* rows,             // [num_seqs], lines of the block table
                 const int* query_start_loc,  // [num_seqs + 1]
                 const int* seq_lens,         // [num_seqs]; the queries are the last tokens
                 const int* work,             // [num_work, 4]: sequence (index into rows), KV head,
                                              // first token, index among its splits; those of a
                                              // KV head are consecutive
                 const int* num_work,         // on the device, so that a graph's grid is constant
                 float* workspace,            // [num_work, workspace_rows, kHeadDim + 4]
                 int* counters,           // [num_seqs, num_kv_heads]: zero, and zero again after
                 const float* sinks,      // [num_heads] or null
                 const float* kv_scales,  // [2, num_kv_heads] or null: 1
                 long long out_stride,    // elements from token to token
                 long long query_stride, int num_heads, int num_kv_heads, int num_blocks,
                 int heads_per_block,  // of the cache: num_kv_heads, and room of other layers
                 int max_blocks_per_row,
                 int split_len,       // of long rows: 128, 256 or 512
                 int window,          // a token sees itself and the window - 1 before it; 0: all
                 int workspace_rows,  // at least the rows of any sequence
                 float scale, float softcap) {
  using Shape = DecodeShape<KV, kHeadDim>;
  const DecodeBatch batch{
      block_table, rows,   query_start_loc,         seq_lens, work, *num_work, max_blocks_per_row,
      split_len,   window, num_heads / num_kv_heads};
  const PagedKv<const KV, kHeadDim> kv{cache, num_blocks, heads_per_block};
  const SplitOutput<T> output{out,      out_stride, workspace, workspace_rows,
                              counters, sinks,      kv_scales, num_kv_heads};
  const DecodeMemory<KV, kHeadDim> memory;

  // kStages - 1 tiles are in flight while one is in use.
  Reader<KV, kHeadDim> reader;
  reader.begin(batch, blockIdx.x);
  for (int stage = 0; stage < Shape::kStages - 1; ++stage)
    reader.copy_next(batch, kv, memory.slot(stage));

  int stage = 0;
  Cursor<KV, kHeadDim> now;
  for (now.begin(batch, blockIdx.x); now.is_valid(batch); now.begin(batch, now.index + gridDim.x)) {
    const Split split = now.split;
    const PackedQueries packed(query_start_loc, seq_lens, split.sequence, split.kv_head,
                               batch.group, window);
    QueryOperand<T, KV, kHeadDim> operand;
    operand.shared = memory.query();
    operand.load(query, query_stride, packed);
    const float key_scale = kv_scales == nullptr ? 1.0f : kv_scales[split.kv_head];
    const Scoring scoring{scale * key_scale, softcap};
    SoftmaxFragment<Shape::kColumns> state;
    state.clear();

    for (bool is_last = false; !is_last; ++now.tile) {
      wait_copies<Shape::kStages - 2>();
      __syncwarp();  // the copies of all lanes are there, and no lane reads the last slot
      reader.copy_next(batch, kv, memory.slot((stage + Shape::kStages - 1) % Shape::kStages));
      const unsigned char* keys = memory.slot(stage);
#pragma unroll
      for (int part = 0; part < Shape::kSlotTokens; part += kBlockSize) {
        const int first = now.first_token() + part;
        if (first >= split.end || first + kBlockSize <= split.oldest) continue;
        float scores[2][4];
        score(scores, operand, keys, part);
        scoring.cap(scores);
        hide(scores, first, packed, 0);
        state.update(scores, scoring.factor());
        add_values<T, KV>(state, scores, keys + Shape::kKeyBytes, part);
      }
      is_last = now.is_last_tile();
      if (!is_last) stage = (stage + 1) % Shape::kStages;
    }
    // The slot that was just used is free until the next tile: it holds the warp's o.
    write_split<T, KV, kHeadDim>(output, memory, stage, state, split, packed);
    stage = (stage + 1) % Shape::kStages;
  }
}

}  // namespace chairlift
