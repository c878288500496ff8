// Where the instantiations of kernels meet their names.
#pragma once

#include <type_traits>
#include <utility>

#include "block.h"

namespace emulation {

inline const Kernel*& registered() {
  static const Kernel* first = nullptr;
  return first;
}

template <auto kKernel>
struct Caller;

// Calls a kernel with arguments as cuLaunchKernel gets them: pointers to the values.
template <typename... Arguments, void (*kKernel)(Arguments...)>
struct Caller<kKernel> {
  static void call(void** arguments) { spread(arguments, std::index_sequence_for<Arguments...>{}); }
  // One letter per argument: pointer, int, long long, float.
  static const char* signature() {
    static constexpr char letters[] = {letter<Arguments>()..., 0};
    return letters;
  }

 private:
  template <typename A>
  static constexpr char letter() {
    static_assert(std::is_pointer_v<A> || std::is_same_v<A, int> || std::is_same_v<A, long long> ||
                  std::is_same_v<A, float>);
    return std::is_pointer_v<A>           ? 'p'
           : std::is_same_v<A, int>       ? 'i'
           : std::is_same_v<A, long long> ? 'l'
                                          : 'f';
  }
  template <std::size_t... kIndex>
  static void spread(void** arguments, std::index_sequence<kIndex...>) {
    kKernel(*static_cast<std::remove_cv_t<Arguments>*>(arguments[kIndex])...);
  }
};

// A kernel that chairlift_launch knows by name.
struct Registration {
  Kernel kernel;

  template <typename C>
  Registration(const char* name, C) : kernel{name, C::signature(), C::call, registered()} {
    registered() = &kernel;
  }
};

}  // namespace emulation
