// From the fused projection to the cache: QK-norm, RoPE (Su et al., 2021), and the write of keys
// and values, in one pass over qkv.
#include "chairlift/paged_kv.cuh"

namespace chairlift {

constexpr int kWriteHeads = 4;  // of a block: a warp each

// Neighbouring elements that one instruction moves.
template <typename E, int kCount>
struct alignas(sizeof(E) * kCount) Run {
  E elements[kCount];
};

// One head of one token, in the registers of a warp: lane l holds coordinates kOwn * l .. and the
// ones half a head further, which RoPE pairs with them.
//
//   head    [ lane 0 | lane 1 | ... | lane 31 ][ lane 0 | lane 1 | ... | lane 31 ]
//               `------- a[] -------'               `------- b[] -------'
template <int kHeadDim>
struct RotaryHead {
  static constexpr int kHalf = kHeadDim / 2;
  static constexpr int kOwn = kHalf <= 32 ? 1 : kHalf <= 64 ? 2 : 4;
  float a[kOwn];
  float b[kOwn];

  // Lanes beyond the head (of 96, say) hold zeros.
  static __device__ __forceinline__ bool is_inside() { return threadIdx.x % 32 * kOwn < kHalf; }
  static __device__ __forceinline__ int first() { return threadIdx.x % 32 * kOwn; }

  template <typename T>
  __device__ __forceinline__ void load(const T* head) {
    Run<T, kOwn> runs[2] = {};
    if (is_inside()) {
      runs[0] = *reinterpret_cast<const Run<T, kOwn>*>(head + first());
      runs[1] = *reinterpret_cast<const Run<T, kOwn>*>(head + first() + kHalf);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      a[i] = float(runs[0].elements[i]);
      b[i] = float(runs[1].elements[i]);
    }
  }

  // To elements of E, each number times `factor`.
  template <typename E>
  __device__ __forceinline__ void store(E* head, float factor) const {
    if (!is_inside()) return;
    Run<E, kOwn> runs[2];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      runs[0].elements[i] = round_to<E>(a[i] * factor);
      runs[1].elements[i] = round_to<E>(b[i] * factor);
    }
    *reinterpret_cast<Run<E, kOwn>*>(head + first()) = runs[0];
    *reinterpret_cast<Run<E, kOwn>*>(head + first() + kHalf) = runs[1];
  }

  // Rounds to T, as if the head had been stored.
  template <typename T>
  __device__ __forceinline__ void round() {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      a[i] = float(round_to<T>(a[i]));
      b[i] = float(round_to<T>(b[i]));
    }
  }

  template <typename T>
  __device__ __forceinline__ void norm(const T* weight, float eps, float offset) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) squares += a[i] * a[i] + b[i] * b[i];
    const float scale = rsqrtf(warp_sum(squares) / kHeadDim + eps);
    RotaryHead weights;
    weights.load(weight);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      a[i] *= scale * (weights.a[i] + offset);
      b[i] *= scale * (weights.b[i] + offset);
    }
  }

  // By the angles of a position: `cos_sin` holds kHalf cosines, then as many sines.
  __device__ __forceinline__ void rotate(const float* cos_sin) {
    RotaryHead angles;  // a: cosines, b: sines
    angles.load(cos_sin);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float first = a[i], second = b[i];
      a[i] = first * angles.a[i] - second * angles.b[i];
      b[i] = second * angles.a[i] + first * angles.b[i];
    }
  }
};

// Norms and rotates queries in place, and writes keys (normed and rotated) and values to the cache.
//
// Grid (num_tokens, ceil((num_heads + 2 * num_kv_heads) / 4)), 128 threads, no shared memory: a
// warp has a head. The keys in qkv stay as they were: attention reads them from the cache. A token
// whose slot is negative is padding: it writes nothing to the cache. With float8 in the
// cache, a stored number times the scale of its head is the number.
template <typename T, typename KV, int kHeadDim>
__global__ void __launch_bounds__(128)
    kv_write(T* qkv,  // [num_tokens, (num_heads + 2 * num_kv_heads) * kHeadDim]: query, key, value
             KV* cache,                // [2, num_blocks, num_kv_heads, kBlockSize, kHeadDim]
             const int* slot_mapping,  // [num_tokens], block * kBlockSize + offset
             const int* positions,     // [num_tokens]
             const float* cos_sin,     // [max_position, kHeadDim] or null: no RoPE
             const T* query_norm,      // [kHeadDim] or null
             const T* key_norm,        // [kHeadDim] or null
             const float* kv_scales,   // [2, num_kv_heads], of keys and values, or null: 1
             long long qkv_stride,     // elements from token to token
             int num_heads, int num_kv_heads, int num_blocks, float eps,
             float norm_offset) {  // added to the weights of norms
  const int token = blockIdx.x;
  const int head = blockIdx.y * kWriteHeads + threadIdx.x / 32;
  if (head >= num_heads + 2 * num_kv_heads) return;
  const bool is_query = head < num_heads;
  const bool is_value = head >= num_heads + num_kv_heads;

  T* from = qkv + token * qkv_stride + head * kHeadDim;
  RotaryHead<kHeadDim> numbers;
  numbers.load(from);
  if (!is_value) {
    const T* weight = is_query ? query_norm : key_norm;
    if (weight != nullptr) numbers.norm(weight, eps, norm_offset);
    if (cos_sin != nullptr)
      numbers.rotate(cos_sin + static_cast<long long>(positions[token]) * kHeadDim);
  }
  if (is_query) {
    numbers.store(from, 1.0f);
    return;
  }

  const int slot = slot_mapping[token];
  if (slot < 0) return;
  const PagedKv<KV, kHeadDim> kv{cache, num_blocks, num_kv_heads};
  const int kv_head = is_value ? head - num_heads - num_kv_heads : head - num_heads;
  KV* block =
      is_value ? kv.values(slot / kBlockSize, kv_head) : kv.keys(slot / kBlockSize, kv_head);
  const float scale = kv_scales == nullptr ? 1.0f : kv_scales[is_value * num_kv_heads + kv_head];
  if constexpr (sizeof(KV) < sizeof(T)) numbers.template round<T>();
  numbers.store(block + slot % kBlockSize * kHeadDim, 1.0f / scale);
}

}  // namespace chairlift
