// Begin and end of a work item of paged_decode: its tokens, and where its result goes.
#pragma once

#include "chairlift/decode_tile.cuh"

namespace chairlift {

// How a block shares an item. A slot holds keys and values of 16 tokens of 16-bit elements or of
// 32 tokens of float8; or a warp's o, [kRows, kColumns] in float32, which takes no more.
template <typename KV, int kHeadDim, int kRows>
struct DecodeShape {
  static constexpr int kWarps = kHeadDim > 256 ? 1 : kHeadDim > 128 ? 2 : 4;
  static constexpr int kStages = kHeadDim > 96 ? 2 : 3;
  static constexpr int kNumThreads = 32 * kWarps;
  static constexpr int kQueryTiles = kRows / 8;
  static constexpr int kColumns = kColumnsOfPart<kHeadDim>;  // of values, and of o
  static constexpr int kSlotTokens = 32 / sizeof(KV);
  static constexpr int kKeyBytes = kSlotTokens * kHeadDim * sizeof(KV);
  static constexpr int kSlotBytes = kKeyBytes + kSlotTokens * kColumns * sizeof(KV);
  static constexpr int kTileTokens = kWarps * kSlotTokens;
  // The queries stay in registers up to head_dim 128.
  static constexpr int kQueryBytes = kHeadDim > 128 ? kRows * kHeadDim * 2 : 0;
  static constexpr int kRingBytes = kWarps * kStages * kSlotBytes;
  static constexpr int kStateBytes = kWarps * kRows * 2 * 4;  // m and d
  static constexpr int kSharedBytes = kRingBytes + kQueryBytes + kStateBytes + 16;
};

constexpr int kLeastSplit = 256;
constexpr int kManySplits = 16;  // where a row would have more, they become longer

// The step as the host describes it.
struct DecodeBatch {
  const int* block_table;
  const int* work;
  int num_work;
  int max_blocks_per_row;
  int split_len;  // of long rows
  int window;
  int group;

  // Tokens of a split of a row: those of short rows are short, so that there is work for every
  // processor. A function of its length alone; the host cuts the work as this does (`Cut`).
  __device__ __forceinline__ int split_len_of(int seq_len) const {
    int own = min(kLeastSplit, split_len);
    while (own < split_len && seq_len > kManySplits * own) own = min(2 * own, split_len);
    return own;
  }
};

// An item of the work list as it is in memory. It says all that the item needs, so that nothing but
// its blocks waits for its words; these are asked for while the item before it is computed.
struct WorkItem {
  int4 what;   // line of the block table, KV head, first token of the split, index of the split
  int4 whose;  // first query in the batch, queries, tokens of the row, 0

  static __device__ __forceinline__ WorkItem load(const DecodeBatch& batch, int item) {
    if (item >= batch.num_work) return {};
    const int4* words =
        reinterpret_cast<const int4*>(batch.work) + 2 * static_cast<long long>(item);
    return {words[0], words[1]};
  }
};

// One item of the work list: the tokens oldest .. end - 1 of a split of its row.
struct Split {
  PackedQueries packed;
  int line;  // of the block table
  int begin;
  int end;
  int oldest;  // not before begin
  int work;    // index in the list
  int index;   // among the splits of the sequence
  int num_splits;

  Split() = default;
  __device__ __forceinline__ Split(const DecodeBatch& batch, int item, const WorkItem& words)
      : packed(words.whose.x, words.whose.y, words.whose.z, words.what.y, batch.group,
               batch.window),
        line(words.what.x),
        begin(words.what.z),
        work(item),
        index(words.what.w) {
    const int split_len = batch.split_len_of(packed.seq_len);
    end = min(begin + split_len, packed.seq_len);
    oldest = max(begin, packed.oldest(0));
    num_splits = (packed.seq_len - 1) / split_len - packed.oldest(0) / split_len + 1;
  }
};

// The block's shared memory:  slots [kWarps][kStages] | query | m and d [kWarps][kRows] | one flag
template <typename KV, int kHeadDim, int kRows>
struct DecodeMemory {
  using Shape = DecodeShape<KV, kHeadDim, kRows>;

  // A slot of this warp, or of another.
  __device__ __forceinline__ unsigned char* slot(int stage, int warp = threadIdx.x / 32) const {
    return dynamic_shared() + (warp * Shape::kStages + stage) * Shape::kSlotBytes;
  }
  __device__ __forceinline__ unsigned* query() const {
    return reinterpret_cast<unsigned*>(dynamic_shared() + Shape::kRingBytes);
  }
  // m and d of a warp's row.
  __device__ __forceinline__ float* state(int warp, int row) const {
    return reinterpret_cast<float*>(dynamic_shared() + Shape::kRingBytes + Shape::kQueryBytes) +
           2 * (warp * kRows + row);
  }
  __device__ __forceinline__ int* flag() const {
    return reinterpret_cast<int*>(state(Shape::kWarps, 0));
  }
  // o of a warp's row from a column on, in a slot. Rows are swizzled, so that the lanes of a
  // fragment write to different banks.
  __device__ __forceinline__ float* o(int stage, int warp, int row, int column) const {
    return reinterpret_cast<float*>(slot(stage, warp)) + row * Shape::kColumns +
           (column ^ (row / 2 % 4 * 8));
  }
};

// Where results go.
template <typename T>
struct SplitOutput {
  T* out;
  long long out_stride;
  float* workspace;
  int workspace_rows;
  int* counters;
  const float* sinks;
  const float* kv_scales;
  int num_kv_heads;

  // o [kHeadDim], m, d, and two floats that keep rows aligned.
  template <int kHeadDim>
  __device__ __forceinline__ float* partial(int item, int row) const {
    return workspace + (static_cast<long long>(item) * workspace_rows + row) * (kHeadDim + 4);
  }

  // Ends a row's attention at four coordinates.
  template <int kHeadDim>
  __device__ __forceinline__ void write(SoftmaxState<4> state, int row, int column,
                                        const PackedQueries& packed) const {
    if (sinks != nullptr) state.merge(SoftmaxState<4>::sink(sinks[packed.head(row)] * kLog2E));
    state.normalize();
    const float scale = kv_scales == nullptr ? 1.0f : kv_scales[num_kv_heads + packed.kv_head];
    uint2 words = {pack<T>(state.o[0] * scale, state.o[1] * scale),
                   pack<T>(state.o[2] * scale, state.o[3] * scale)};
    T* to = out + packed.offset<kHeadDim>(row, out_stride) + column;
    *reinterpret_cast<uint2*>(to) = words;
  }
};

// True for every thread of the block that finishes the last part of the last split of this
// sequence and KV head. What the other blocks wrote before is then visible. A barrier comes before.
template <typename T>
__device__ __forceinline__ bool is_last_split(const SplitOutput<T>& output, const Split& split,
                                              int* flag) {
  if (threadIdx.x == 0) {
    __threadfence();  // the partial results of the block are seen by those that see the count
    int* counter = output.counters + split.line * output.num_kv_heads + split.packed.kv_head;
    *flag = atomicAdd(counter, 1) == split.num_splits * static_cast<int>(gridDim.y) - 1;
    if (*flag) *counter = 0;  // no other block counts before the next launch
    __threadfence();
  }
  __syncthreads();
  return *flag;
}

// Partial results that a thread has on their way to it at a time: a row of 64 k tokens has 128.
constexpr int kSplitsAtOnce = 8;

// Merges the partial results of all splits, left to right, and writes the output.
template <int kHeadDim, typename T>
__device__ __forceinline__ void combine_splits(const SplitOutput<T>& output, const Split& split) {
  const PackedQueries& packed = split.packed;
  for (int i = threadIdx.x; i < packed.num_rows() * (kHeadDim / 4); i += blockDim.x) {
    const int row = i / (kHeadDim / 4), column = i % (kHeadDim / 4) * 4;
    auto state = SoftmaxState<4>::empty();
    for (int first = 0; first < split.num_splits; first += kSplitsAtOnce) {
      SoftmaxState<4> partials[kSplitsAtOnce];
#pragma unroll
      for (int j = 0; j < kSplitsAtOnce; ++j) {
        partials[j] = SoftmaxState<4>::empty();
        if (first + j >= split.num_splits) continue;
        const int item = split.work - split.index + first + j;
        const float* partial = output.template partial<kHeadDim>(item, row);
        const float4 o = __ldcg(reinterpret_cast<const float4*>(partial + column));
        const float2 md = __ldcg(reinterpret_cast<const float2*>(partial + kHeadDim));
        partials[j] = {md.x, md.y, {o.x, o.y, o.z, o.w}};
      }
      state.merge(partials);
    }
    output.template write<kHeadDim>(state, row, column, packed);
  }
}

// Merges the states of the block's warps, which are those of tokens at fixed positions of the
// split, and writes the output, or what other splits will be merged with. `stage` is a slot of each
// warp that nothing is copied to.
template <typename T, typename KV, int kHeadDim, int kRows>
__device__ __forceinline__ void write_split(
    const SplitOutput<T>& output, const DecodeMemory<KV, kHeadDim, kRows>& memory, int stage,
    SoftmaxColumns<kColumnsOfPart<kHeadDim>, kRows / 8>& columns, const Split& split) {
  constexpr int kColumns = kColumnsOfPart<kHeadDim>;
  const PackedQueries& packed = split.packed;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  columns.share();
  __syncwarp();  // all lanes have read their keys and values from the slot
#pragma unroll
  for (int n = 0; n < kRows / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * n + lane % 4 * 2 + i;
      if (row >= packed.num_rows()) continue;
      if (lane < 4) {
        memory.state(warp, row)[0] = columns.m[n][i];
        memory.state(warp, row)[1] = columns.d[n][i];
      }
#pragma unroll
      for (int tile = 0; tile < kColumns / 16; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *memory.o(stage, warp, row, TileOperand<T, KV, kColumns>::coordinate(tile, half)) =
              columns.o[tile][n][2 * half + i];
    }
  __syncthreads();

  for (int i = threadIdx.x; i < packed.num_rows() * (kColumns / 4); i += blockDim.x) {
    const int row = i / (kColumns / 4), own = i % (kColumns / 4) * 4;
    const int column = first_column<kHeadDim>() + own;
    auto state = SoftmaxState<4>::empty();
#pragma unroll
    for (int w = 0; w < DecodeShape<KV, kHeadDim, kRows>::kWarps; ++w) {
      const float4 o = *reinterpret_cast<const float4*>(memory.o(stage, w, row, own));
      state.merge({memory.state(w, row)[0], memory.state(w, row)[1], {o.x, o.y, o.z, o.w}});
    }
    if (split.num_splits == 1) {
      output.template write<kHeadDim>(state, row, column, packed);
      continue;
    }
    float* partial = output.template partial<kHeadDim>(split.work, row);
    *reinterpret_cast<float4*>(partial + column) = {state.o[0], state.o[1], state.o[2], state.o[3]};
    if (column == 0) partial[kHeadDim] = state.m, partial[kHeadDim + 1] = state.d;
  }
  __syncthreads();  // the slots are free, and the partial result is written
  if (split.num_splits > 1 && is_last_split(output, split, memory.flag()))
    combine_splits<kHeadDim>(output, split);
}

}  // namespace chairlift
