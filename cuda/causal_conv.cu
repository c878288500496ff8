// Causal convolution of each channel along the tokens of its row, whose state is the last inputs.
#include "chairlift/activation.cuh"
#include "chairlift/sequences.cuh"
#include "chairlift/vec.cuh"

namespace chairlift {

constexpr int kConvThreads = 128;

// Where kConvVec channels of the inputs of a row are: those of the step in `x`, those before it in
// the state.
template <typename T>
struct ConvInputs {
  static constexpr int kVec = Vec<T>::kSize;
  const T* x;     // of the row's first token
  const T* gate;  // likewise, or null
  long long x_stride, gate_stride;
  const float* past;  // [num_past, ...], the oldest first; null is zeros
  int num_past;
  int channels;

  // The input at an offset to the row's first token of the step: `num_past` before it at most.
  __device__ __forceinline__ void read(int offset, float (&values)[kVec]) const {
    if (offset >= 0) {
      Vec<T>::load(x + offset * x_stride).unpack(values);
      if (gate == nullptr) return;
      float factors[kVec];
      Vec<T>::load(gate + offset * gate_stride).unpack(factors);
#pragma unroll
      for (int j = 0; j < kVec; ++j) values[j] *= factors[j];
    } else if (past == nullptr) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) values[j] = 0.0f;
    } else {
      load_floats(past + (num_past + offset) * static_cast<long long>(channels), values);
    }
  }

  static __device__ __forceinline__ void load_floats(const float* from, float (&values)[kVec]) {
#pragma unroll
    for (int i = 0; i < kVec; i += 4) {
      float part[4];
      Vec<float>::load(from + i).unpack(part);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[i + j] = part[j];
    }
  }

  static __device__ __forceinline__ void store_floats(float* to, const float (&values)[kVec]) {
#pragma unroll
    for (int i = 0; i < kVec; i += 4) {
      const float part[4] = {values[i], values[i + 1], values[i + 2], values[i + 3]};
      Vec<float>::pack_from(part).store(to + i);
    }
  }
};

// out[t] = gate_out[t] * f(bias + sum_k weight[k] (gate_in x)[t - num_past + k]), with f = silu or
// nothing; then the state of each row has its last inputs.
//
// Grid (num_tokens, ceil(channels / (128 * 16 / sizeof(T)))), kConvThreads threads, no shared
// memory: a thread has 16 bytes of a token. The thread of a row's first token also has the
// `num_past` - 1 tokens behind that, which see the state, too, and writes the state: no other one
// reads it. Channels and strides are multiples of 16 bytes. A sum goes from the oldest input on, so
// that its bits are a function of the inputs alone, wherever a prompt is cut.
template <typename T>
__global__ void __launch_bounds__(128)
    causal_conv(T* out,                        // [num_tokens, channels], as the next three
                const T* x, const T* gate_in,  // factors of inputs, or null
                const T* gate_out,             // factors of outputs, or null
                const float* weight,  // [num_past + 1, channels], of the oldest input first
                const float* bias,    // [channels] or null
                float* state,         // [., num_past, channels]: of each row
                const int* rows,      // [num_rows], as the others of Sequences
                const int* query_start_loc, const int* seq_lens,
                long long out_stride,  // elements from token to token
                long long x_stride, long long gate_in_stride, long long gate_out_stride,
                long long state_stride,  // elements from row to row
                int num_rows, int num_past, int channels, int has_silu) {
  constexpr int kVec = Vec<T>::kSize;
  const Sequences sequences{rows, query_start_loc, seq_lens, num_rows};
  const int token = blockIdx.x, channel = (blockIdx.y * kConvThreads + threadIdx.x) * kVec;
  const int r = sequences.row_of(token);
  if (r < 0 || channel >= channels) return;
  const int first = sequences.first(r), count = sequences.count(r), offset = token - first;
  if (offset > 0 && offset < num_past) return;  // those of the first one's thread
  float* past = state + rows[r] * state_stride + channel;
  const ConvInputs<T> inputs{
      x + first * x_stride + channel,
      gate_in == nullptr ? nullptr : gate_in + first * gate_in_stride + channel,
      x_stride,
      gate_in_stride,
      sequences.is_new(r) ? nullptr : past,
      num_past,
      channels};

  const int end = offset == 0 ? min(num_past, count) : offset + 1;
  for (int at = offset; at < end; ++at) {
    float sums[kVec] = {}, values[kVec], factors[kVec];
    if (bias != nullptr) ConvInputs<T>::load_floats(bias + channel, sums);
    for (int tap = 0; tap <= num_past; ++tap) {
      inputs.read(at - num_past + tap, values);
      ConvInputs<T>::load_floats(weight + tap * static_cast<long long>(channels) + channel,
                                 factors);
#pragma unroll
      for (int j = 0; j < kVec; ++j) sums[j] = fmaf(values[j], factors[j], sums[j]);
    }
    if (has_silu) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) sums[j] = activated(sums[j], kSilu);
    }
    if (gate_out != nullptr) {
      Vec<T>::load(gate_out + (first + at) * gate_out_stride + channel).unpack(factors);
#pragma unroll
      for (int j = 0; j < kVec; ++j) sums[j] *= factors[j];
    }
    Vec<T>::pack_from(sums).store(out + (first + at) * out_stride + channel);
  }
  if (offset > 0) return;
  // An input moves towards the oldest place: each is read before its place is written.
  for (int place = 0; place < num_past; ++place) {
    float values[kVec];
    inputs.read(count - num_past + place, values);
    ConvInputs<T>::store_floats(past + place * static_cast<long long>(channels), values);
  }
}

}  // namespace chairlift
