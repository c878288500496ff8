#include "fiber.h"

#include <cstdint>

// The registers that a call preserves are on the stack that they belong to.
#if defined(__x86_64__)

asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
.type emulation_switch, @function
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulation_switch, .-emulation_switch
)");

namespace emulation {

Context prepare(unsigned char* stack, std::size_t num_bytes, void (*entry)()) {
  auto top = reinterpret_cast<std::uintptr_t>(stack + num_bytes) & ~std::uintptr_t{15};
  auto* words = reinterpret_cast<std::uintptr_t*>(top);
  *--words = 0;  // the return address of `entry`: keeps the stack aligned as at a call
  *--words = reinterpret_cast<std::uintptr_t>(entry);
  for (int i = 0; i < 6; ++i) *--words = 0;
  return words;
}

}  // namespace emulation

#elif defined(__aarch64__)

asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
.type emulation_switch, %function
emulation_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emulation_switch, .-emulation_switch
)");

namespace emulation {

Context prepare(unsigned char* stack, std::size_t num_bytes, void (*entry)()) {
  auto top = reinterpret_cast<std::uintptr_t>(stack + num_bytes) & ~std::uintptr_t{15};
  auto* words = reinterpret_cast<std::uintptr_t*>(top) - 20;
  for (int i = 0; i < 20; ++i) words[i] = 0;
  words[11] = reinterpret_cast<std::uintptr_t>(entry);  // x30, the return address
  return words;
}

}  // namespace emulation

#else
#error "no switch of stacks for this processor"
#endif
