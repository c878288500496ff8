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
// All query heads of the KV head are columns of one tensor-core tile (of two, where there are more
// than 8 queries), so that a key is read once; see decode_tile.cuh. The words of an item are read
// two items ahead, its blocks one item ahead: nothing waits at the border of two items.
//
// Of heads of 512 numbers o does not fit in the registers of a warp: a block computes one half of
// its columns (blockIdx.y), and the scores are computed for each half.
#include "chairlift/decode_split.cuh"

namespace chairlift {

// What a block reads next: a tile (kTileTokens of a split) of an item of the work list.
template <typename Shape>
struct Cursor {
  int index;  // in the work list
  int tile;   // of the split
  Split split;

  // The first tile with a visible token of item `index`, if there is one.
  __device__ __forceinline__ void begin(const DecodeBatch& batch, int item, const WorkItem& words) {
    index = item;
    if (!is_valid(batch)) return;
    split = Split(batch, item, words);
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
template <typename KV, int kHeadDim, typename Shape>
struct Reader {
  Cursor<Shape> at;
  int blocks;       // lane l: the l-th block of the split
  int next_blocks;  // of the item after it
  WorkItem next, behind_next;

  __device__ __forceinline__ void begin_first(const DecodeBatch& batch, int item) {
    next = WorkItem::load(batch, item);
    behind_next = WorkItem::load(batch, item + gridDim.x);
    next_blocks = load_blocks(batch, item, next);
    begin(batch, item);
  }

  __device__ __forceinline__ void begin(const DecodeBatch& batch, int item) {
    at.begin(batch, item, next);
    if (!at.is_valid(batch)) return;
    blocks = next_blocks;
    next = behind_next;
    next_blocks = load_blocks(batch, item + gridDim.x, next);
    behind_next = WorkItem::load(batch, item + 2 * gridDim.x);
  }

  // The blocks that lie behind the end of a row are not read: they may be anything.
  static __device__ __forceinline__ int load_blocks(const DecodeBatch& batch, int item,
                                                    const WorkItem& words) {
    const int block = words.what.z / kBlockSize + threadIdx.x % 32;
    if (item >= batch.num_work || block * kBlockSize >= words.whose.z) return 0;
    return batch
        .block_table[static_cast<long long>(words.what.x) * batch.max_blocks_per_row + block];
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
        const int row = part * kBlockSize, head = split.packed.kv_head;
        const KV* keys = kv.keys(block, head);
        const KV* values = kv.values(block, head) + first_column<kHeadDim>();
        if (first >= split.oldest && first + kBlockSize <= split.end) {
          copy_block<kHeadDim, true>(slot, row, keys, first);
          copy_block<Shape::kColumns, true>(slot + Shape::kKeyBytes, row, values, first);
        } else {
          copy_block<kHeadDim, false>(slot, row, keys, first);
          copy_block<Shape::kColumns, false>(slot + Shape::kKeyBytes, row, values, first);
        }
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
  template <int kColumns, bool kIsWhole>
  __device__ __forceinline__ void copy_block(unsigned char* tile, int row, const KV* from,
                                             int first) const {
    using Tile = KvTile<KV, kColumns>;
#pragma unroll
    for (int turn = 0; turn < kBlockSize * Tile::kChunks / 32; ++turn) {
      const int i = 32 * turn + threadIdx.x % 32;
      const int token = i / Tile::kChunks, chunk = i % Tile::kChunks;
      const bool is_seen =
          kIsWhole || (first + token >= at.split.oldest && first + token < at.split.end);
      copy_async(tile + Tile::offset(row + token, chunk),
                 from + token * kHeadDim + chunk * (16 / sizeof(KV)), is_seen);
    }
  }
};

// Attention of sequences with at most kRows rows (num_queries * group), 8 or 16, over the cache.
//
// Grid (any number of blocks, parts of o): best as many blocks as fit the GPU at once. Parts,
// threads and bytes of shared memory as DecodeShape says: one part (head_dim 512: 2), 128 threads
// (head_dim 256: 64, 512: 32), and kSharedBytes. `out` of a sequence without work items is left
// alone. The bits of a row do not depend on kRows.
template <typename T, typename KV, int kHeadDim, int kRows>
__global__ void __launch_bounds__(DecodeShape<KV, kHeadDim, kRows>::kNumThreads)
    paged_decode(T* out,                  // [tokens, num_heads, kHeadDim]
                 const T* query,          // [tokens, num_heads, kHeadDim]
                 const KV* cache,         // [2, num_blocks, num_kv_heads, 16, kHeadDim]
                 const int* block_table,  // [*, max_blocks_per_row]
                 const int* work,         // [num_work, 8]: see WorkItem; those of a sequence and
                                          // KV head are consecutive
                 const int* num_work,     // on the device, so that a graph's grid is constant
                 float* workspace,        // [num_work, workspace_rows, kHeadDim + 4]
                 int* counters,           // [lines of the block table, num_kv_heads]: zero, and
                                          // zero again after
                 const float* sinks,      // [num_heads] or null
                 const float* kv_scales,  // [2, num_kv_heads] or null: 1
                 long long out_stride,    // elements from token to token
                 long long query_stride, int num_heads, int num_kv_heads, int num_blocks,
                 int heads_per_block,  // of the cache: num_kv_heads, and room of other layers
                 int max_blocks_per_row,
                 int split_len,       // of long rows: 256 or 512
                 int window,          // a token sees itself and the window - 1 before it; 0: all
                 int workspace_rows,  // at least the rows of any sequence
                 float scale, float softcap) {
  using Shape = DecodeShape<KV, kHeadDim, kRows>;
  const DecodeBatch batch{block_table,
                          work,
                          *num_work,
                          max_blocks_per_row,
                          split_len,
                          window,
                          num_heads / num_kv_heads};
  const PagedKv<const KV, kHeadDim> kv{cache, num_blocks, heads_per_block};
  const SplitOutput<T> output{out,      out_stride, workspace, workspace_rows,
                              counters, sinks,      kv_scales, num_kv_heads};
  const DecodeMemory<KV, kHeadDim, kRows> memory;

  // kStages - 1 tiles are in flight while one is in use.
  Reader<KV, kHeadDim, Shape> reader;
  reader.begin_first(batch, blockIdx.x);
  for (int stage = 0; stage < Shape::kStages - 1; ++stage)
    reader.copy_next(batch, kv, memory.slot(stage));

  int stage = 0;
  Cursor<Shape> now;
  WorkItem next = WorkItem::load(batch, blockIdx.x);
  for (int item = blockIdx.x; item < batch.num_work; item += gridDim.x) {
    now.begin(batch, item, next);
    next = WorkItem::load(batch, item + gridDim.x);
    const Split& split = now.split;
    QueryOperand<T, KV, kHeadDim, Shape::kQueryTiles> operand;
    operand.shared = memory.query();
    operand.load(query, query_stride, split.packed);
    const float key_scale = kv_scales == nullptr ? 1.0f : kv_scales[split.packed.kv_head];
    const Scoring scoring{scale * key_scale, softcap};
    SoftmaxColumns<Shape::kColumns, Shape::kQueryTiles> state;
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
        float scores[Shape::kQueryTiles][4];
        score(scores, operand, keys, part);
        scoring.cap(scores);
        hide(scores, first, split.packed);
        state.update(scores, scoring.factor());
        add_values<T, KV>(state, scores, keys + Shape::kKeyBytes, part);
      }
      is_last = now.is_last_tile();
      if (!is_last) stage = (stage + 1) % Shape::kStages;
    }
    // The slot that was just used is free until the next tile: it holds the warp's o.
    write_split<T, KV, kHeadDim, kRows>(output, memory, stage, state, split);
    stage = (stage + 1) % Shape::kStages;
  }
}

}  // namespace chairlift
