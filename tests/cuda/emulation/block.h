// One block of emulated threads: who runs, who waits, and what went wrong.
#pragma once

#include <string>

namespace emulation {

struct Kernel {
  const char* name;
  const char* signature;  // launch.h
  void (*call)(void** arguments);
  const Kernel* next;
};

// What a launch asks for.
struct Launch {
  const Kernel* kernel;
  void** arguments;
  int num_threads;
  int shared_bytes;
};

// The thread that runs gives up with a message, and the whole launch with it.
[[noreturn]] void fail(const std::string& message);

// Runs the block that blockIdx names. False if it failed: `error` says why.
bool run_block(const Launch& launch, bool is_reversed);
const std::string& error();

// The block's shared memory, [num_bytes] between NaN and a page that nobody may touch.
unsigned char* begin_shared(int num_bytes);
bool is_shared(const void* address, int num_bytes);
bool canaries_live();

// The copies of a thread in flight end with it.
void begin_copies(int num_threads);
bool copies_in_flight(int thread);
int this_thread();

}  // namespace emulation
