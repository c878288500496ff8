// Answers CPUID as a processor with AVX2 alone does. LD_PRELOAD it into a process whose libraries
// have UD2 in the place of CPUID (held_libraries.py): UD2 raises SIGILL, and the handler answers in
// its place.

#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <string.h>
#include <sys/ucontext.h>

enum { UD2_BYTES = 2, FEATURES = 7 };

// Bits of leaf 7: AVX-512 in all its parts, and AMX.
static const unsigned EBX_OF_0 =
    1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31;
static const unsigned ECX_OF_0 = 1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14;
static const unsigned EDX_OF_0 =
    1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25;
// AVX-VNNI, AVX-512 BF16, AMX-FP16 and AVX-IFMA; AVX-VNNI-INT8, AVX-NE-CONVERT, AVX-VNNI-INT16 and
// AVX10.
static const unsigned EAX_OF_1 = 1u << 4 | 1u << 5 | 1u << 21 | 1u << 23;
static const unsigned EDX_OF_1 = 1u << 4 | 1u << 5 | 1u << 10 | 1u << 19;

static void answer(int signal_number, siginfo_t* info, void* context) {
  (void)info;
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const unsigned char* code = (const unsigned char*)registers[REG_RIP];
  if (code[0] != 0x0f || code[1] != 0x0b) {
    // Another illegal instruction ends the process, as without this handler.
    signal(signal_number, SIG_DFL);
    return;
  }
  unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
  unsigned eax, ebx, ecx, edx;
  __cpuid_count(leaf, part, eax, ebx, ecx, edx);
  if (leaf == FEATURES && part == 0) {
    ebx &= ~EBX_OF_0;
    ecx &= ~ECX_OF_0;
    edx &= ~EDX_OF_0;
  }
  if (leaf == FEATURES && part == 1) {
    eax &= ~EAX_OF_1;
    edx &= ~EDX_OF_1;
  }
  registers[REG_RAX] = eax;
  registers[REG_RBX] = ebx;
  registers[REG_RCX] = ecx;
  registers[REG_RDX] = edx;
  registers[REG_RIP] += UD2_BYTES;
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, NULL);
}
