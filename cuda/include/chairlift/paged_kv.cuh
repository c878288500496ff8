// Keys and values in blocks: where the token at a position of a row lies.
#pragma once

namespace chairlift {

// One layer's view of the cache; it owns nothing.
//
//   position        0 ............ 15 | 16 ........... 31 | 32 ..
//   block table     block_table[row][0] | block_table[row][1] | block_table[row][2]
//                          |                    |
//   cache           [2, num_blocks, num_kv_heads, block_size, head_dim]     0: keys, 1: values
//
// Block 0 is the null block: no row owns it, and no position that is read maps to it.
template <typename T>
struct PagedKv {
  const T* cache;          // [2, num_blocks, num_kv_heads, block_size, head_dim]
  const int* block_table;  // [max_num_seqs, max_blocks_per_row]
  int num_blocks;
  int num_kv_heads;
  int block_size;
  int head_dim;
  int max_blocks_per_row;

  // The key [head_dim] of one KV head at a position of a row.
  __device__ const T* key(int row, int head, int position) const {
    return cache + offset(row, head, position);
  }

  // The value [head_dim], likewise.
  __device__ const T* value(int row, int head, int position) const {
    const long long keys =
        static_cast<long long>(num_blocks) * num_kv_heads * block_size * head_dim;
    return cache + keys + offset(row, head, position);
  }

 private:
  __device__ long long offset(int row, int head, int position) const {
    const long long block =
        block_table[static_cast<long long>(row) * max_blocks_per_row + position / block_size];
    return ((block * num_kv_heads + head) * block_size + position % block_size) * head_dim;
  }
};

}  // namespace chairlift
