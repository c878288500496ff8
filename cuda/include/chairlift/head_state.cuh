// The recurrent state of a head, a matrix, in the registers of a block.
//
//   warp w    columns 8 w .. 8 w + 7 of the state [key_dim, value_dim]
//   lane l    column l % 8, part l / 8: of each 16 keys the four from 4 (l / 8) on
//
// A column is one chain of operations in the order of the tokens. A sum over its keys has one order
// too: in four chains of a lane, then over the four lanes of a column.
#pragma once

#include "chairlift/sequences.cuh"
#include "chairlift/vec.cuh"

namespace chairlift {

// Tokens that are staged in shared memory at a time.
constexpr int kStateTokens = 8;
constexpr int kColumnsOfWarp = 8;

// Registers for kKeys keys, 4 threads for each column; keys beyond key_dim are zeros.
template <int kKeys>
struct HeadState {
  static constexpr int kPerLane = kKeys / 4;
  float numbers[kPerLane];

  static __device__ __forceinline__ int part() { return threadIdx.x % 32 / kColumnsOfWarp; }
  static __device__ __forceinline__ int column() {
    return threadIdx.x / 32 * kColumnsOfWarp + threadIdx.x % kColumnsOfWarp;
  }
  static __device__ __forceinline__ int key(int i) { return i / 4 * 16 + 4 * part() + i % 4; }

  __device__ __forceinline__ void load(const float* state, int key_dim, int value_dim,
                                       bool is_new) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      numbers[i] = is_new || key(i) >= key_dim ? 0.0f : state[key(i) * value_dim + column()];
  }

  __device__ __forceinline__ void store(float* state, int key_dim, int value_dim) const {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (key(i) < key_dim) state[key(i) * value_dim + column()] = numbers[i];
  }

  // S = decay S; returns S^T keys of the column.
  __device__ __forceinline__ float recall(float decay, const float* keys) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < kPerLane; i += 4) {
      float own[4];
      Vec<float>::load(keys + key(i)).unpack(own);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        numbers[i + j] *= decay;
        sums[j] = fmaf(numbers[i + j], own[j], sums[j]);
      }
    }
    return of_column(sums);
  }

  // S = decay S + keys value^T; returns S^T queries of the column.
  __device__ __forceinline__ float add(float decay, const float* keys, const float* queries,
                                       float value) {
    float sums[4] = {};
#pragma unroll
    for (int i = 0; i < kPerLane; i += 4) {
      float own[4], asked[4];
      Vec<float>::load(keys + key(i)).unpack(own);
      Vec<float>::load(queries + key(i)).unpack(asked);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        numbers[i + j] = fmaf(own[j], value, __fmul_rn(numbers[i + j], decay));
        sums[j] = fmaf(numbers[i + j], asked[j], sums[j]);
      }
    }
    return of_column(sums);
  }

 private:
  static __device__ __forceinline__ float of_column(const float (&sums)[4]) {
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum += __shfl_xor_sync(0xffffffffu, sum, kColumnsOfWarp);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2 * kColumnsOfWarp);
  }
};

// What is staged of some tokens, in shared memory.
template <int kKeys>
struct StagedTokens {
  float* keys;     // [kStateTokens, kKeys]
  float* queries;  // likewise
  float* values;   // [kStateTokens, value_dim]; then what the state gives for them
  float* decays;   // [kStateTokens]
  float* shares;   // [kStateTokens]

  // kStateTokens * (2 * kKeys + value_dim + 2) floats.
  __device__ __forceinline__ explicit StagedTokens(float* memory, int value_dim)
      : keys(memory),
        queries(keys + kStateTokens * kKeys),
        values(queries + kStateTokens * kKeys),
        decays(values + kStateTokens * value_dim),
        shares(decays + kStateTokens) {}
};

// Widens `size` numbers times a factor, zeros behind them, by a warp: `out` [padded].
template <typename T>
__device__ __forceinline__ void widen(float* out, const T* from, int size, int padded,
                                      float factor) {
  for (int i = threadIdx.x % 32; i < padded; i += 32)
    out[i] = i < size ? float(from[i]) * factor : 0.0f;
}

// ln(1 + e^x); above 20 it is x, as in PyTorch.
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

}  // namespace chairlift
