// The activations of feed-forwards.
#pragma once

namespace chairlift {

// As `ACTIVATIONS` of kernels/cuda/row_ops.py numbers them.
enum Activation { kSilu, kGelu, kGeluTanh, kRelu2, kSigmoid };

__device__ __forceinline__ float activated(float z, int activation) {
  switch (activation) {
    case kGelu:
      return 0.5f * z * (1.0f + erff(z * 0.7071067811865476f));
    case kGeluTanh:
      return 0.5f * z * (1.0f + tanhf(0.7978845608028654f * (z + 0.044715f * z * z * z)));
    case kRelu2:
      return z > 0.0f || z != z ? z * z : 0.0f;  // NaN stays NaN
    case kSigmoid:
      return 1.0f / (1.0f + expf(-z));
    default:
      return z / (1.0f + expf(-z));
  }
}

}  // namespace chairlift
