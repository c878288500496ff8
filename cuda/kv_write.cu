// From the projections to the cache: QK-norm, RoPE (Su et al., 2021), and the write of keys and
// values, in one pass.
#include "chairlift/paged_kv.cuh"

namespace chairlift {

constexpr int kWriteHeads = 4;  // of a block: a warp each

// Neighbouring elements that one instruction moves.
template <typename E, int kCount>
struct alignas(sizeof(E) * kCount) Run {
  E elements[kCount];
};

// How RoPE pairs the coordinates of a head. Lane l has the pairs kOwn * l .. of kHeadDim / 2, as
// two runs of kOwn coordinates, so that both of a pair are in one lane:
//
//   halves       [ l0 | l1 | l2 ][ l0 | l1 | l2 ][ l3 | l4 ][ l3 | l4 ]
//                 `---- num_rotated pairs -----'  `--- these stay ---'
//   neighbours   [ l0   l0 | l1   l1 | l2   l2 ][ l3   l3 | l4   l4 ]
template <int kHeadDim>
struct RotaryPairs {
  static constexpr int kNum = kHeadDim / 2;
  static constexpr int kOwn = kNum <= 32 ? 1 : kNum <= 64 ? 2 : kNum <= 128 ? 4 : 8;
  int num_rotated;  // pairs; a multiple of kOwn
  bool is_interleaved;

  static __device__ __forceinline__ int first() { return threadIdx.x % 32 * kOwn; }
  // Lanes beyond the head (of 96, say) hold zeros.
  static __device__ __forceinline__ bool is_inside() { return first() < kNum; }
  __device__ __forceinline__ bool is_rotated() const { return first() < num_rotated; }

  // The first coordinate of a run.
  __device__ __forceinline__ int place(int run) const {
    if (is_interleaved) return 2 * first() + run * kOwn;
    if (is_rotated()) return first() + run * num_rotated;
    return num_rotated + first() + run * (kNum - num_rotated);
  }
};

template <typename T, int kCount>
__device__ __forceinline__ void load_run(float* to, const T* from) {
  const auto run = *reinterpret_cast<const Run<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = float(run.elements[i]);
}

// One head of one token, in the registers of a warp.
template <int kHeadDim>
struct RotaryHead {
  using Pairs = RotaryPairs<kHeadDim>;
  static constexpr int kOwn = Pairs::kOwn;
  Pairs pairs;
  float numbers[2 * kOwn];

  __device__ __forceinline__ explicit RotaryHead(const Pairs& pairs) : pairs(pairs), numbers{} {}

  template <typename T>
  __device__ __forceinline__ void load(const T* head) {
    if (!Pairs::is_inside()) return;
    load_run<T, kOwn>(numbers, head + pairs.place(0));
    load_run<T, kOwn>(numbers + kOwn, head + pairs.place(1));
  }

  // To elements of E, each number times `factor`.
  template <typename E>
  __device__ __forceinline__ void store(E* head, float factor) const {
    if (!Pairs::is_inside()) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      Run<E, kOwn> run;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) run.elements[i] = round_to<E>(numbers[r * kOwn + i] * factor);
      *reinterpret_cast<Run<E, kOwn>*>(head + pairs.place(r)) = run;
    }
  }

  // Rounds to T, as if the head had been stored.
  template <typename T>
  __device__ __forceinline__ void round() {
#pragma unroll
    for (int i = 0; i < 2 * kOwn; ++i) numbers[i] = float(round_to<T>(numbers[i]));
  }

  template <typename T>
  __device__ __forceinline__ void norm(const T* weight, float eps, float offset) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      squares += numbers[i] * numbers[i] + numbers[kOwn + i] * numbers[kOwn + i];
    const float scale = rsqrtf(warp_sum(squares) / kHeadDim + eps);
    RotaryHead weights(pairs);
    weights.load(weight);
#pragma unroll
    for (int i = 0; i < 2 * kOwn; ++i) numbers[i] *= scale * (weights.numbers[i] + offset);
  }

  // By the angles of a position: `cos_sin` holds the cosines of the rotated pairs, then the sines.
  __device__ __forceinline__ void rotate(const float* cos_sin) {
    if (!pairs.is_rotated()) return;
    float cosines[kOwn], sines[kOwn];
    load_run<float, kOwn>(cosines, cos_sin + Pairs::first());
    load_run<float, kOwn>(sines, cos_sin + pairs.num_rotated + Pairs::first());
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (pairs.is_interleaved)
        turn(numbers[2 * i], numbers[2 * i + 1], cosines[i], sines[i]);
      else
        turn(numbers[i], numbers[kOwn + i], cosines[i], sines[i]);
    }
  }

  static __device__ __forceinline__ void turn(float& a, float& b, float cosine, float sine) {
    const float first = a, second = b;
    a = first * cosine - second * sine;
    b = second * cosine + first * sine;
  }
};

// Norms and rotates queries in place, and writes keys (normed and rotated) and values to the cache.
//
// Grid (num_tokens, ceil((num_heads + 2 * num_kv_heads) / 4)), 128 threads, no shared memory: a
// warp has a head. The keys stay as they were: attention reads them from the cache. A token whose
// slot is negative is padding: it writes nothing to the cache. With float8 in the cache, a stored
// number times the scale of its head is the number. Without KV heads (of a layer that sees the keys
// of another one) queries alone are changed, and `value`, `cache` and `slot_mapping` may be null.
template <typename T, typename KV, int kHeadDim>
__global__ void __launch_bounds__(128)
    kv_write(T* query_key,  // [num_tokens, num_heads + num_kv_heads, kHeadDim]: queries, then keys
             const T* value,              // [num_tokens, num_kv_heads, kHeadDim]; may be the keys
             KV* cache,                   // [2, num_blocks, num_kv_heads, kBlockSize, kHeadDim]
             const int* slot_mapping,     // [num_tokens], block * kBlockSize + offset
             const int* positions,        // [num_tokens]
             const float* query_cos_sin,  // [max_position, rotary_dim] or null: no RoPE
             const float* key_cos_sin,    // the same of keys; may be one tensor
             const T* query_norm,         // [kHeadDim] or null
             const T* key_norm,           // [kHeadDim] or null
             const float* kv_scales,      // [2, num_kv_heads], of keys and values, or null: 1
             long long query_key_stride,  // elements from token to token
             long long value_stride, int num_heads, int num_kv_heads, int num_blocks,
             int heads_per_block,  // of the cache: num_kv_heads, and room of other layers
             float eps,
             float norm_offset,   // added to the weights of norms
             int rotary_dim,      // numbers of a head that RoPE turns, the first ones; twice a
                                  // multiple of RotaryPairs::kOwn
             int is_interleaved)  // a number is turned with its neighbour
{
  const int token = blockIdx.x;
  const int head = blockIdx.y * kWriteHeads + threadIdx.x / 32;
  if (head >= num_heads + 2 * num_kv_heads) return;
  const bool is_query = head < num_heads;
  const bool is_value = head >= num_heads + num_kv_heads;
  const int kv_head = is_value ? head - num_heads - num_kv_heads : head - num_heads;

  T* query = query_key + token * query_key_stride + head * kHeadDim;  // or key
  RotaryHead<kHeadDim> numbers({rotary_dim / 2, is_interleaved != 0});
  numbers.load(is_value ? value + token * value_stride + kv_head * kHeadDim : query);
  if (!is_value) {
    const T* weight = is_query ? query_norm : key_norm;
    if (weight != nullptr) numbers.norm(weight, eps, norm_offset);
    const float* cos_sin = is_query ? query_cos_sin : key_cos_sin;
    if (cos_sin != nullptr)
      numbers.rotate(cos_sin + static_cast<long long>(positions[token]) * rotary_dim);
  }
  if (is_query) {
    numbers.store(query, 1.0f);
    return;
  }

  const int slot = slot_mapping[token];
  if (slot < 0) return;
  const PagedKv<KV, kHeadDim> kv{cache, num_blocks, heads_per_block};
  KV* block =
      is_value ? kv.values(slot / kBlockSize, kv_head) : kv.keys(slot / kBlockSize, kv_head);
  const float scale = kv_scales == nullptr ? 1.0f : kv_scales[is_value * num_kv_heads + kv_head];
  if constexpr (sizeof(KV) < sizeof(T)) numbers.template round<T>();
  numbers.store(block + slot % kBlockSize * kHeadDim, 1.0f / scale);
}

}  // namespace chairlift
