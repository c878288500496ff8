// bfloat16 as storage: arithmetic is float. Needs no CUDA header, so that NVRTC compiles it with no
// toolkit.
#pragma once

namespace chairlift {

// The upper half of a float.
struct bfloat16 {
  unsigned short bits;

  __device__ operator float() const {
    const unsigned int wide = static_cast<unsigned int>(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
  }

  // To the nearest, ties to even; NaN stays NaN.
  static __device__ bfloat16 from(float value) {
    unsigned int wide;
    memcpy(&wide, &value, sizeof(wide));
    if (value != value) return {static_cast<unsigned short>((wide >> 16) | 0x40)};
    wide += 0x7fff + ((wide >> 16) & 1);
    return {static_cast<unsigned short>(wide >> 16)};
  }
};

// Rounds a float to the element type T.
template <typename T>
__device__ inline T round_to(float value) {
  return T::from(value);
}

template <>
__device__ inline float round_to<float>(float value) {
  return value;
}

}  // namespace chairlift
