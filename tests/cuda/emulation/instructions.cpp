#include "instructions.h"

#include <sys/mman.h>

#include <vector>

#include "block.h"

namespace emulation {

// --- shared memory ------------------------------------------------------------------------------

namespace {

constexpr int kArenaBytes = 256 * 1024;
constexpr int kAlignment = 1024;
constexpr unsigned char kCanary[2] = {0xa5, 0xff};  // NaN as bfloat16, float16 and float32

unsigned char* shared_begin;
unsigned char* shared_end;
unsigned char* arena_end;

}  // namespace

unsigned char* begin_shared(int num_bytes) {
  if (arena_end == nullptr) {
    void* memory = mmap(nullptr, kArenaBytes + 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    arena_end = static_cast<unsigned char*>(memory) + kArenaBytes;
    mprotect(arena_end, 4096, PROT_NONE);
  }
  shared_begin = arena_end - (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
  shared_end = shared_begin + num_bytes;
  std::fill(shared_begin, shared_end, 0xff);
  for (unsigned char* p = shared_end; p < arena_end; ++p) *p = kCanary[(p - shared_end) % 2];
  return shared_begin;
}

bool canaries_live() {
  for (unsigned char* p = shared_end; p < arena_end; ++p)
    if (*p != kCanary[(p - shared_end) % 2]) return false;
  return true;
}

bool is_shared(const void* address, int num_bytes) {
  const auto* begin = static_cast<const unsigned char*>(address);
  return begin >= shared_begin && begin + num_bytes <= shared_end;
}

unsigned char* dynamic_shared() { return shared_begin; }

// --- cp.async -----------------------------------------------------------------------------------

namespace {

struct Copy {
  unsigned char* to;
  const void* from;  // null: zeros
  int group;
};

struct Copies {
  std::vector<Copy> in_flight;
  int num_groups;
};

std::vector<Copies> copies;

bool is_aligned(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

}  // namespace

void begin_copies(int num_threads) { copies.assign(num_threads, Copies{}); }

bool copies_in_flight(int thread) { return !copies[thread].in_flight.empty(); }

void copy_async(void* shared, const void* global, bool is_valid) {
  if (!is_shared(shared, 16)) fail("copies to a place outside shared memory");
  if (!is_aligned(shared) || !is_aligned(global)) fail("copies 16 bytes that are not aligned");
  Copies& mine = copies[this_thread()];
  auto* to = static_cast<unsigned char*>(shared);
  std::fill(to, to + 16, 0xff);
  mine.in_flight.push_back({to, is_valid ? global : nullptr, mine.num_groups});
}

void commit_copies() { ++copies[this_thread()].num_groups; }

void wait_copies(int num_left) {
  Copies& mine = copies[this_thread()];
  const int first_left = mine.num_groups - num_left;
  auto landed = mine.in_flight.begin();
  for (; landed != mine.in_flight.end() && landed->group < first_left; ++landed) {
    if (landed->from == nullptr)
      std::fill(landed->to, landed->to + 16, 0);
    else
      memcpy(landed->to, landed->from, 16);
  }
  mine.in_flight.erase(mine.in_flight.begin(), landed);
}

// --- tensor cores -------------------------------------------------------------------------------

float from_bfloat(std::uint16_t bits) {
  return bit_cast_to<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bfloat(float value) {
  const auto wide = bit_cast_to<std::uint32_t>(value);
  if (value != value) return 0x7fff;
  return static_cast<std::uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

float from_half(std::uint16_t bits) {
  static const std::vector<float> table = [] {
    std::vector<float> values(65536);
    for (int i = 0; i < 65536; ++i) {
      const int exponent = i >> 10 & 31, mantissa = i & 1023;
      const float magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                              : exponent == 0
                                  ? std::ldexp(static_cast<float>(mantissa), -24)
                                  : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
      values[i] = i >> 15 ? -magnitude : magnitude;
    }
    return values;
  }();
  return table[bits];
}

std::uint16_t to_half(float value) {
  const std::uint16_t sign = bit_cast_to<std::uint32_t>(value) >> 16 & 0x8000;
  const float magnitude = std::fabs(value);
  if (value != value) return 0x7fff;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  // Adding and taking away a power of two rounds to its last place, ties to even.
  int exponent;
  std::frexp(std::max(magnitude, 0x1p-14f), &exponent);
  const float unit = std::ldexp(1.0f, exponent - 11);  // of the last place
  const float rounded = std::nearbyint(magnitude / unit) * unit;
  if (rounded < 0x1p-14f) return sign | static_cast<std::uint16_t>(rounded * 0x1p24f);
  std::frexp(rounded, &exponent);
  const int mantissa = static_cast<int>(std::ldexp(rounded, 11 - exponent)) - 1024;
  return sign | static_cast<std::uint16_t>((exponent + 14) << 10 | mantissa);
}

void load_matrices(std::uint32_t (&r)[4], const void* row, bool is_transposed) {
  if (!is_shared(row, 16) || !is_aligned(row)) fail("loads a matrix row that is not in place");
  std::uint32_t in[4];
  memcpy(in, row, 16);
  // Lane 8 i + j names row j of matrix i; lane 4 j + k gets elements 2 k and 2 k + 1 of row j.
  const auto plain = [](Exchange& e, std::uint32_t) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i) e.out[lane][i] = e.in[8 * i + lane / 4][lane % 4];
  };
  // Transposed: lane 4 j + k gets element j of rows 2 k and 2 k + 1.
  const auto transposed = [](Exchange& e, std::uint32_t) {
    for (int lane = 0; lane < 32; ++lane) {
      const int column = lane / 4, first = lane % 4 * 2;
      for (int i = 0; i < 4; ++i) {
        std::uint32_t pair = 0;
        for (int half = 0; half < 2; ++half) {
          const std::uint32_t word = e.in[8 * i + first + half][column / 2];
          pair |= (word >> (16 * (column % 2)) & 0xffff) << (16 * half);
        }
        e.out[lane][i] = pair;
      }
    }
  };
  const std::uint32_t* out = is_transposed ? collective("ldmatrix.trans", ~0u, in, 4, transposed)
                                           : collective("ldmatrix", ~0u, in, 4, plain);
  std::copy(out, out + 4, r);
}

std::uint32_t transpose_matrix(std::uint32_t pair) {
  const auto transposed = [](Exchange& e, std::uint32_t) {
    for (int lane = 0; lane < 32; ++lane) {
      const int element = lane / 4, first = lane % 4 * 2;
      e.out[lane][0] = 0;
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t word = e.in[4 * (first + half) + element / 2][0];
        e.out[lane][0] |= (word >> (16 * (element % 2)) & 0xffff) << (16 * half);
      }
    }
  };
  return *collective("movmatrix.trans", ~0u, &pair, 1, transposed);
}

namespace {

// m16n8k16, row by column. Lane 4 g + t holds, of A, rows g and g + 8, of B, column g, both at
// k = 2 t, 2 t + 1 and 8 more; of C, rows g and g + 8 at columns 2 t and 2 t + 1.
template <float (*widen)(std::uint16_t)>
void multiply(Exchange& e, std::uint32_t) {
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const std::uint32_t* in = e.in[lane];
    for (int i = 0; i < 8; ++i) {
      const auto bits = static_cast<std::uint16_t>(in[i / 2] >> (16 * (i % 2)));
      a[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] = widen(bits);
    }
    for (int i = 0; i < 4; ++i) {
      const auto bits = static_cast<std::uint16_t>(in[4 + i / 2] >> (16 * (i % 2)));
      b[2 * t + i % 2 + i / 2 * 8][g] = widen(bits);
      c[g + i / 2 * 8][2 * t + i % 2] = bit_cast_to<float>(in[6 + i]);
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      e.out[lane][i] = bit_cast_to<std::uint32_t>(c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]);
}

}  // namespace

void multiply_accumulate(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1, Element element) {
  std::uint32_t in[10] = {a[0], a[1], a[2], a[3], b0, b1};
  memcpy(in + 6, c, sizeof(c));
  const std::uint32_t* out = element == Element::float16
                                 ? collective("mma.f16", ~0u, in, 10, multiply<from_half>)
                                 : collective("mma.bf16", ~0u, in, 10, multiply<from_bfloat>);
  memcpy(c, out, sizeof(c));
}

}  // namespace emulation
