// Counter-based random numbers, the same as in rust/chairlift-kernels/src/sampling/philox.rs:
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include "chairlift/mma.cuh"

namespace chairlift {

// A uniform number in [0, 1) with 53 random bits: a function of its coordinates alone. Numbers of
// two streams are independent.
__device__ inline double uniform(unsigned long long seed, unsigned index, unsigned position,
                                 unsigned stream = 0) {
  unsigned counter[4] = {position, index, stream, 0};
  unsigned key[2] = {static_cast<unsigned>(seed), static_cast<unsigned>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const unsigned a_high = __umulhi(0xD2511F53u, counter[0]), a_low = 0xD2511F53u * counter[0];
    const unsigned b_high = __umulhi(0xCD9E8D57u, counter[2]), b_low = 0xCD9E8D57u * counter[2];
    counter[0] = b_high ^ counter[1] ^ key[0];
    counter[1] = b_low;
    counter[2] = a_high ^ counter[3] ^ key[1];
    counter[3] = a_low;
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const unsigned long long bits =
      (static_cast<unsigned long long>(counter[1]) << 32 | counter[0]) >> 11;
  return static_cast<double>(bits) * (1.0 / 9007199254740992.0);
}

}  // namespace chairlift
