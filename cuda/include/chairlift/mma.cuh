// The instructions that C++ cannot express: tensor cores, asynchronous copies, conversions.
//
// The only file with PTX. Under CHAIRLIFT_EMULATION the same functions come from
// tests/cuda/emulation/instructions.h, and everything above them runs on a CPU.
#pragma once

#ifdef CHAIRLIFT_EMULATION
#include "instructions.h"
#else

namespace chairlift {

struct bfloat16;
struct float16;

// The block's dynamic shared memory; the kernels use no other.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  return shared_memory;
}

__device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// --- conversions --------------------------------------------------------------------------------

// 2^x within 2 units in the last place; 0 for -inf. Results below the normal numbers are 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x within 1 unit in the last place; 0 for infinity.
__device__ __forceinline__ float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float half_to_float(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ unsigned short float_to_half(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// Two elements of T in 32 bits, rounded to the nearest; `low` is the one at the lower address.
template <typename T>
__device__ __forceinline__ unsigned pack(float low, float high);

template <>
__device__ __forceinline__ unsigned pack<bfloat16>(float low, float high) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <>
__device__ __forceinline__ unsigned pack<float16>(float low, float high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Products of two pairs of T.
template <typename T>
__device__ __forceinline__ unsigned multiply_pairs(unsigned x, unsigned y);

template <>
__device__ __forceinline__ unsigned multiply_pairs<bfloat16>(unsigned x, unsigned y) {
  unsigned product;  // sm_80 multiplies bfloat16 only as a fused multiply-add; -0 changes nothing
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(x), "r"(y), "r"(0x80008000u));
  return product;
}

template <>
__device__ __forceinline__ unsigned multiply_pairs<float16>(unsigned x, unsigned y) {
  unsigned product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(x), "r"(y));
  return product;
}

// --- asynchronous copies ------------------------------------------------------------------------
//
//   copy_async .. copy_async  commit_copies  |  copy_async ..  commit_copies  |  wait_copies<1>
//   `----------- group 0 -----------------'     `-------- group 1 --------'      group 0 is there
//
// A wait makes the copies of the waiting thread visible to that thread; a barrier after it makes
// them visible to the other threads.

// Copies 16 bytes from global to shared memory past the registers and L1; zeros if not `is_valid`,
// and then the source is not read.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool is_valid) {
  asm volatile(
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
      "l"(global), "r"(is_valid ? 16 : 0)
      : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until all but the last kLeft groups of this thread have arrived.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// --- tensor cores -------------------------------------------------------------------------------

// Loads four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + j names row j (16
// bytes) of matrix i. Of each matrix, lane 4 g + t gets row g, elements 2 t and 2 t + 1.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same of the transposed matrices: lane 4 g + t gets rows 2 t and 2 t + 1 at element g.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// Transposes an 8 x 8 matrix of 16-bit elements: lane 4 g + t gives row g, elements 2 t and 2 t +
// 1, and gets rows 2 t and 2 t + 1 at element g.
__device__ __forceinline__ unsigned transpose_matrix(unsigned pair) {
  unsigned transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// c += a b for a 16 x 16, b 16 x 8, c 16 x 8, spread over the warp. With g = lane / 4 and
// t = lane % 4:
//
//   a[0]: row g,     columns 2 t, 2 t + 1      a[2]: row g,     columns 2 t + 8, 2 t + 9
//   a[1]: row g + 8, columns 2 t, 2 t + 1      a[3]: row g + 8, columns 2 t + 8, 2 t + 9
//   b0:   rows 2 t, 2 t + 1, column g          b1:   rows 2 t + 8, 2 t + 9, column g
//   c[0], c[1]: row g, columns 2 t, 2 t + 1    c[2], c[3]: row g + 8, the same columns
template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1);

template <>
__device__ __forceinline__ void mma<bfloat16>(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                              unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma<float16>(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace chairlift

#endif  // CHAIRLIFT_EMULATION
