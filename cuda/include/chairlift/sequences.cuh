// The tokens of a step, as rows with a recurrent state have them.
#pragma once

namespace chairlift {

// A row without tokens is padding: nothing of its state is read or written.
struct Sequences {
  const int* rows;             // [num_rows]: the state of each
  const int* query_start_loc;  // [num_rows + 1]: where the tokens of each start
  const int* seq_lens;         // [num_rows]: tokens of each after the step
  int num_rows;

  __device__ __forceinline__ int first(int r) const { return query_start_loc[r]; }
  __device__ __forceinline__ int count(int r) const {
    return query_start_loc[r + 1] - query_start_loc[r];
  }
  // Whether the first token of a row is the first of all: it begins with zeros.
  __device__ __forceinline__ bool is_new(int r) const { return seq_lens[r] == count(r); }

  // The row that has a token of the step; -1 behind the last one.
  __device__ __forceinline__ int row_of(int token) const {
    if (token >= query_start_loc[num_rows]) return -1;
    int low = 0, high = num_rows;  // starts[low] <= token < starts[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (query_start_loc[middle] <= token) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

}  // namespace chairlift
