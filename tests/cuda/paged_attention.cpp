// cuda/paged_attention.cu as a shared library for the test: plain pointers in, status out.
#include "host.h"
// The kernel comes after the emulation that it compiles against.
#include "paged_attention.cu"

namespace chairlift {

template <typename T>
int run(PagedAttentionParams<T> params, int num_tokens) {
  const Index grid = {static_cast<unsigned>(num_tokens), static_cast<unsigned>(params.num_heads),
                      1};
  switch (params.kv.head_dim) {
    case 16:
      launch(paged_attention<T, 16>, grid, kNumThreads, params);
      return 0;
    case 64:
      launch(paged_attention<T, 64>, grid, kNumThreads, params);
      return 0;
    case 128:
      launch(paged_attention<T, 128>, grid, kNumThreads, params);
      return 0;
    default:
      return 1;
  }
}

}  // namespace chairlift

extern "C" int paged_attention_float32(chairlift::PagedAttentionParams<float> params,
                                       int num_tokens) {
  return chairlift::run(params, num_tokens);
}

extern "C" int paged_attention_bfloat16(chairlift::PagedAttentionParams<chairlift::bfloat16> params,
                                        int num_tokens) {
  return chairlift::run(params, num_tokens);
}
