#include "block.h"

#include <signal.h>
#include <sys/mman.h>

#include <cstdio>
#include <vector>

#include "cuda.h"
#include "fiber.h"

namespace emulation {

namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr std::uint64_t kCanary = 0x5ca1ab1ec0ffee00;
constexpr int kMaxThreads = 1024;

enum class State { ready, at_barrier, in_collective, done };

struct Thread {
  Context context;
  State state;
};

// A warp's collective that some lanes have reached.
struct Warp {
  const char* name;
  std::uint32_t mask;
  std::uint32_t arrived;
  Exchange exchange;
};

Context scheduler;
Launch launched;
std::vector<Thread> threads;
std::vector<Warp> warps;
int current = -1;  // the thread that runs; -1: the scheduler
int num_at_barrier;
std::string message;

// Stacks side by side; a canary at the far end of each must live.
unsigned char* stack_of(int thread) {
  static unsigned char* const stacks =
      static_cast<unsigned char*>(mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  return stacks + thread * kStackBytes;
}

std::uint64_t& stack_canary(int thread) {
  return *reinterpret_cast<std::uint64_t*>(stack_of(thread));
}

std::string where(int thread) {
  char text[96];
  std::snprintf(text, sizeof(text), "thread %d of block (%u, %u, %u)", thread, blockIdx.x,
                blockIdx.y, blockIdx.z);
  return text;
}

void wait_as(State state) {
  threads[current].state = state;
  emulation_switch(&threads[current].context, scheduler);
}

void thread_main() {
  launched.kernel->call(launched.arguments);
  if (copies_in_flight(current)) fail("ends with asynchronous copies that nobody waited for");
  wait_as(State::done);
}

// Why no thread can go on.
std::string describe_stall() {
  int num_done = 0;
  for (const Thread& thread : threads) num_done += thread.state == State::done;
  char text[320];
  for (std::size_t i = 0; i < threads.size(); ++i) {
    if (threads[i].state != State::in_collective) continue;
    const Warp& warp = warps[i / 32];
    std::snprintf(text, sizeof(text),
                  "divergent %s: lanes %#x of warp %zu wait for lanes %#x in block (%u, %u, %u)",
                  warp.name, warp.arrived, i / 32, warp.mask & ~warp.arrived, blockIdx.x,
                  blockIdx.y, blockIdx.z);
    return text;
  }
  std::snprintf(text, sizeof(text),
                "divergent __syncthreads: %d of %zu threads wait, %d have ended, in block "
                "(%u, %u, %u)",
                num_at_barrier, threads.size(), num_done, blockIdx.x, blockIdx.y, blockIdx.z);
  return text;
}

void run_thread(int thread) {
  current = thread;
  threadIdx = {static_cast<unsigned>(thread), 0, 0};
  emulation_switch(&scheduler, threads[thread].context);
  current = -1;
}

// Runs a warp as far as it comes without the others: warps drift as far apart as barriers let them,
// so that a missing barrier shows. False if it could not move.
bool run_warp(int warp, bool is_reversed) {
  const int first = 32 * warp, count = std::min(32, static_cast<int>(threads.size()) - first);
  bool has_run = false;
  for (bool is_running = true; is_running && message.empty();) {
    is_running = false;
    for (int turn = 0; turn < count && message.empty(); ++turn) {
      const int thread = first + (is_reversed ? count - 1 - turn : turn);
      if (threads[thread].state != State::ready) continue;
      run_thread(thread);
      is_running = has_run = true;
    }
  }
  return has_run;
}

void on_fault(int signal_number, siginfo_t* info, void*) {
  if (current < 0) {  // not a kernel's: as if nobody had caught it
    signal(signal_number, SIG_DFL);
    return;
  }
  char text[64];
  std::snprintf(text, sizeof(text), "touches memory that is not its own at %p", info->si_addr);
  fail(text);
}

// While it lives, a kernel's bad access is an error and not the end of the process.
class FaultGuard {
 public:
  FaultGuard() {
    static std::vector<unsigned char> memory(64 * 1024);
    stack_t stack = {};
    stack.ss_sp = memory.data();
    stack.ss_size = memory.size();
    sigaltstack(&stack, &stack_before_);
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // `fail` never returns from it
    sigaction(SIGSEGV, &action, &segv_before_);
    sigaction(SIGBUS, &action, &bus_before_);
  }
  ~FaultGuard() {
    sigaction(SIGSEGV, &segv_before_, nullptr);
    sigaction(SIGBUS, &bus_before_, nullptr);
    sigaltstack(&stack_before_, nullptr);
  }

 private:
  stack_t stack_before_;
  struct sigaction segv_before_, bus_before_;
};

}  // namespace

void fail(const std::string& what) {
  message = where(current) + " " + what;
  Context abandoned;
  emulation_switch(&abandoned, scheduler);
  __builtin_unreachable();
}

int this_thread() { return current; }

void barrier() {
  if (++num_at_barrier < static_cast<int>(threads.size())) return wait_as(State::at_barrier);
  num_at_barrier = 0;
  for (Thread& thread : threads) thread.state = State::ready;
}

const std::uint32_t* collective(const char* name, std::uint32_t mask, const std::uint32_t* in,
                                int num_in, Complete complete) {
  const int lane = current % 32;
  Warp& warp = warps[current / 32];
  if (!(mask >> lane & 1)) fail(std::string("is not in the mask of its ") + name);
  if (warp.arrived == 0) {
    warp.name = name;
    warp.mask = mask;
  } else if (warp.mask != mask || std::strcmp(warp.name, name) != 0) {
    fail(std::string("is at ") + name + " while lanes of its warp are at " + warp.name);
  }
  std::copy(in, in + num_in, warp.exchange.in[lane]);
  warp.arrived |= 1u << lane;
  if (warp.arrived != mask) {
    wait_as(State::in_collective);
  } else {
    complete(warp.exchange, mask);
    warp.arrived = 0;
    const std::size_t first = current / 32 * 32;
    for (std::size_t i = 0; i < 32 && first + i < threads.size(); ++i)
      if (mask >> i & 1) threads[first + i].state = State::ready;
  }
  return warp.exchange.out[lane];
}

bool run_block(const Launch& launch, bool is_reversed) {
  FaultGuard guard;
  launched = launch;
  message.clear();
  num_at_barrier = 0;
  const int num_threads = launch.num_threads;
  threads.resize(num_threads);
  warps.assign((num_threads + 31) / 32, Warp{});
  begin_shared(launch.shared_bytes);
  begin_copies(num_threads);
  for (int i = 0; i < num_threads; ++i) {
    threads[i] = {prepare(stack_of(i), kStackBytes, thread_main), State::ready};
    stack_canary(i) = kCanary;
  }
  const int num_warps = static_cast<int>(warps.size());
  for (bool has_run = true; has_run;) {
    has_run = false;
    for (int turn = 0; turn < num_warps; ++turn)
      has_run |= run_warp(is_reversed ? num_warps - 1 - turn : turn, is_reversed);
    if (!message.empty()) return false;
  }
  for (const Thread& thread : threads)
    if (thread.state != State::done) message = describe_stall();
  for (int i = 0; i < num_threads; ++i)
    if (stack_canary(i) != kCanary) message = where(i) + " needs more stack than there is";
  if (!canaries_live()) message = "a write past the end of shared memory, " + where(0);
  return message.empty();
}

const std::string& error() { return message; }

}  // namespace emulation
