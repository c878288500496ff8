// The layers of experts: one product of matrices per projection, over the rows of all experts.
//
// A block of threads multiplies the rows of a tile, which have one expert, with some of the outputs
// of that expert. Pieces of 64 inputs of both go through a ring in shared memory:
//
//   rows     [piece 0][piece 1][piece 2] ...      kRows: 16 where experts have few rows, as in
//   weights  [piece 0][piece 1][piece 2] ...      decodes, which then read each weight once; or 64
//
//   copies   |  piece 3  |  piece 4  |  piece 5  |        four slots: three pieces are under way
//   compute  |  piece 0  |  piece 1  |  piece 2  |        while one is multiplied
//
// The inputs of an output are added in their order by one warp, 16 at a time: the bits of a row
// depend neither on kRows, nor on the other rows of its expert, nor on where the row lies in a
// tile.
#include "chairlift/activation.cuh"
#include "chairlift/paged_kv.cuh"

namespace chairlift {

// The product of a tile; a warp has all rows and a quarter of the columns.
template <typename T, int kRows>
struct ExpertProduct {
  static constexpr int kColumns = kRows == 16 ? 64 : 128;
  static constexpr int kDepth = 64;  // inputs of a piece
  static constexpr int kStages = kRows == 16 ? 4 : 3;
  static constexpr int kStageBytes = (kRows + kColumns) * kDepth * 2;
  static constexpr int kFragments = kRows / 16;
  static constexpr int kWarpColumns = kColumns / 4;
  static constexpr int kTiles = kWarpColumns / 8;
  static constexpr int kNone = -8;  // aligned, and not read
  using Piece = Swizzled<kDepth * 2>;

  const T* rows;
  const T* weights;
  int depth;  // inputs; a multiple of 8
  // Elements before those that this thread copies: threadIdx.x / 8 + 16 i. Negative: zeros.
  long long row_at[kRows / 16];
  int column_at[kColumns / 16];
  float sums[kFragments][kTiles][4];

  // Finds rows and columns: `row_of` gives the elements before a row of the tile, `column_of` the
  // weights of a column's output.
  template <typename RowOf, typename ColumnOf>
  __device__ __forceinline__ ExpertProduct(const T* rows, const T* weights, int depth, RowOf row_of,
                                           ColumnOf column_of)
      : rows(rows), weights(weights), depth(depth), sums{} {
    const int line = threadIdx.x / 8;
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) row_at[i] = row_of(line + 16 * i);
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      const int output = column_of(line + 16 * i);
      column_at[i] = output < 0 ? kNone : output * depth;
    }
  }

  // Starts the copy of a piece; always a group, so that waits count pieces.
  __device__ __forceinline__ void copy(int piece, int slot) const {
    const int chunk = threadIdx.x % 8, line = threadIdx.x / 8;
    unsigned char* to = dynamic_shared() + slot * kStageBytes + Piece::offset(line, chunk);
    const int from = piece * kDepth + 8 * chunk;
    if (piece * kDepth < depth) {
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i)
        copy_async(to + 16 * i * kDepth * 2, rows + row_at[i] + from,
                   row_at[i] >= 0 && from < depth);
#pragma unroll
      for (int i = 0; i < kColumns / 16; ++i)
        copy_async(to + (kRows + 16 * i) * kDepth * 2, weights + column_at[i] + from,
                   column_at[i] >= 0 && from < depth);
    }
    commit_copies();
  }

  __device__ __forceinline__ void multiply(int slot) {
    const int matrix = threadIdx.x % 32 / 8, line = threadIdx.x % 8;
    const unsigned char* of_rows = dynamic_shared() + slot * kStageBytes;
    const unsigned char* of_columns =
        of_rows + (kRows + threadIdx.x / 32 * kWarpColumns) * kDepth * 2;
    const int row_place = Piece::offset(matrix % 2 * 8 + line, matrix / 2);
    const int column_place = Piece::offset(matrix / 2 * 8 + line, matrix % 2);
#pragma unroll
    for (int step = 0; step < kDepth / 16; ++step) {
      unsigned a[kFragments][4];
#pragma unroll
      for (int f = 0; f < kFragments; ++f)
        load_matrices(a[f], of_rows + Piece::behind(row_place, 16 * f, 2 * step));
#pragma unroll
      for (int pair = 0; pair < kTiles / 2; ++pair) {
        unsigned b[4];
        load_matrices(b, of_columns + Piece::behind(column_place, 16 * pair, 2 * step));
#pragma unroll
        for (int f = 0; f < kFragments; ++f) {
          mma<T>(sums[f][2 * pair], a[f], b[0], b[1]);
          mma<T>(sums[f][2 * pair + 1], a[f], b[2], b[3]);
        }
      }
    }
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int piece = 0; piece < kStages - 1; ++piece) copy(piece, piece);
    int slot = 0, free_slot = kStages - 1;
    for (int piece = 0; piece * kDepth < depth; ++piece) {
      wait_copies<kStages - 2>();
      __syncthreads();  // the piece is there; no warp reads the slot before it any more
      copy(piece + kStages - 1, free_slot);
      free_slot = slot;
      multiply(slot);
      slot = slot + 1 == kStages ? 0 : slot + 1;
    }
  }

  // Visits this thread's results: (row of the tile, fragment, index of the first of two in `sums`).
  template <typename Visit>
  static __device__ __forceinline__ void for_each_row(int num_rows, Visit visit) {
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * f + 8 * half + threadIdx.x % 32 / 4;
        if (row < num_rows) visit(row, f, 2 * half);
      }
  }
};

// What is between the layers: activation(gate) * up; the activation alone; or
// (up + 1) * gate / (1 + e^(-alpha gate)), where both are clamped.
struct ExpertGate {
  int activation;
  float limit;  // of gates from above, of ups from both sides; infinite: none is clamped
  float alpha;
  float up_offset;

  __device__ __forceinline__ float operator()(float gate, float up) const {
    // Written as selects that keep NaN.
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up;
    up = up < -limit ? -limit : up;
    if (activation == kSilu) return (up + up_offset) * (gate / (1.0f + expf(-alpha * gate)));
    return up * activated(gate, activation);
  }
};

// out = the first layer of each row's expert and its gate or activation, rows in the order of
// experts.
//
// Grid (max_tiles, ceil(parts * inner / columns)), 128 threads, (kRows + columns) * 128 * stages
// bytes of shared memory: 16 rows, 64 columns, 4 stages, or 64, 128 and 3. The hidden and the inner
// size are multiples of 8.
//
//   columns of a warp   [ gates of some outputs ][ ups of the same ]    one thread has both
template <typename T, int kRows>
__global__ void __launch_bounds__(128)
    expert_gate_up(T* out,            // [num_pairs, inner]
                   const T* x,        // [num_tokens, hidden]
                   const T* weights,  // [num_experts, parts * inner, hidden]: gates, then ups
                   const T* biases,   // [num_experts, parts * inner] or null
                   const int* order,  // from `group_by_expert`, as the tiles
                   const int* tiles, long long x_stride, int hidden, int inner, int top_k,
                   int parts,  // 2, or 1: there are no gates
                   int activation, float limit, float alpha, float up_offset) {
  using Product = ExpertProduct<T, kRows>;
  const int* tile = tiles + 3 * blockIdx.x;
  const long long expert = tile[0];
  if (expert < 0) return;
  const int first = tile[1], num_rows = tile[2];
  const int of_warp = Product::kWarpColumns / parts;  // outputs
  const int first_output = blockIdx.y * 4 * of_warp;
  Product product(
      x, weights + expert * parts * inner * hidden, hidden,
      [&](int row) -> long long {
        return row < num_rows ? order[first + row] / top_k * x_stride : Product::kNone;
      },
      [&](int column) {
        const int warp = column / Product::kWarpColumns, own = column % Product::kWarpColumns;
        const int output = first_output + warp * of_warp + own % of_warp;
        return output < inner ? output + own / of_warp * inner : -1;
      });
  product.run();

  const ExpertGate gated{activation, limit, alpha, up_offset};
  const T* bias = biases == nullptr ? nullptr : biases + expert * parts * inner;
  const int begin = first_output + threadIdx.x / 32 * of_warp + threadIdx.x % 4 * 2;
  Product::for_each_row(num_rows, [&](int row, int f, int at) {
#pragma unroll
    for (int n = 0; n < Product::kTiles; ++n) {
      const int output = begin + 8 * n;
      if (8 * n >= of_warp || output >= inner) continue;
      float values[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float gate = product.sums[f][n][at + i], up = 1.0f;
        if (bias != nullptr) gate += float(bias[output + i]);
        if (parts == 2) {
          up = product.sums[f][(n + Product::kTiles / 2) % Product::kTiles][at + i];
          if (bias != nullptr) up += float(bias[inner + output + i]);
        }
        values[i] = gated(gate, up);
      }
      *reinterpret_cast<unsigned*>(out + static_cast<long long>(first + row) * inner + output) =
          pack<T>(values[0], values[1]);
    }
  });
}

// out = the second layer of each row's expert; the rows of `inner_rows` are in the order of
// experts, those of `out` in the order of tokens.
//
// Grid (max_tiles, ceil(hidden / (kRows == 16 ? 64 : 128))); otherwise as `expert_gate_up`.
template <typename T, int kRows>
__global__ void __launch_bounds__(128)
    expert_down(T* out,               // [num_pairs, hidden]
                const T* inner_rows,  // [num_pairs, inner]
                const T* weights,     // [num_experts, hidden, inner]
                const T* biases,      // [num_experts, hidden] or null
                const int* order, const int* tiles, int hidden, int inner) {
  using Product = ExpertProduct<T, kRows>;
  const int* tile = tiles + 3 * blockIdx.x;
  const long long expert = tile[0];
  if (expert < 0) return;
  const int first = tile[1], num_rows = tile[2];
  const int first_output = blockIdx.y * Product::kColumns;
  Product product(
      inner_rows, weights + expert * hidden * inner, inner,
      [&](int row) -> long long {
        return row < num_rows ? static_cast<long long>(first + row) * inner : Product::kNone;
      },
      [&](int column) { return first_output + column < hidden ? first_output + column : -1; });
  product.run();

  const T* bias = biases == nullptr ? nullptr : biases + expert * hidden;
  const int begin = first_output + threadIdx.x / 32 * Product::kWarpColumns + threadIdx.x % 4 * 2;
  Product::for_each_row(num_rows, [&](int row, int f, int at) {
    T* to = out + static_cast<long long>(order[first + row]) * hidden;
#pragma unroll
    for (int n = 0; n < Product::kTiles; ++n) {
      const int output = begin + 8 * n;
      if (output >= hidden) continue;
      float values[2] = {product.sums[f][n][at], product.sums[f][n][at + 1]};
      if (bias != nullptr) {
        values[0] += float(bias[output]);
        values[1] += float(bias[output + 1]);
      }
      *reinterpret_cast<unsigned*>(to + output) = pack<T>(values[0], values[1]);
    }
  });
}

}  // namespace chairlift
