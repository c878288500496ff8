// Stacks that take turns on one thread of the operating system.
#pragma once

#include <cstddef>

namespace emulation {

// Where a stack that is not running goes on.
using Context = void*;

// Goes on at `to`; the caller goes on when somebody switches to what is stored in `from`.
extern "C" void emulation_switch(Context* from, Context to);

// A stack of `num_bytes` on which `entry` begins at the first switch to it. It must never return.
Context prepare(unsigned char* stack, std::size_t num_bytes, void (*entry)());

}  // namespace emulation
