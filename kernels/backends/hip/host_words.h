// SPDX-License-Identifier: MIT
// CUDA's words of host text on HIP (kernels/backends/held.h): a launch, the facts of a device, memory of a launch.
#pragma once
#include "kernels/backends/hip/held.h"

namespace tilekiln {

extern const Backend hip_backend;

namespace cuda {

using hip::Kernel, hip::Site;

constexpr bool kBlocksMeet = false,
               kTeamsMeet = false;  // blocks of a launch, and teams of a block, wait for nobody else

// The kernel's one argument, by value.
struct Argument {
  const void* data;
  size_t bytes;

  template <class Value> Argument(const Value* value) : data(value), bytes(sizeof(Value)) {}
};
struct KernelLaunch {
  const Kernel* kernel;
  const char* function;
  unsigned grid[3], threads, shared_bytes;
  Argument row;
  bool together, early = false;  // no launch asks for the first, the second is an offer
};
struct Engine : hip::Engine {
  constexpr Engine(tilekiln_status (*launch)(const Site& site, const void* problem)) : hip::Engine{launch, hip::any} {}
};
struct Facts {
  int multiprocessors, shared_bytes;

  const Facts* operator->() const { return this; }
};

// Declared for what asks for kBlocksMeet first.
tilekiln_status zero_word(int device, NativeStream stream, unsigned** word);

namespace {

template <class Fits> const Kernel* find_held(Fits&& fits) { return hip::find_kernel("", fits); }

[[maybe_unused]] tilekiln_status launch(const Site& site, const KernelLaunch& one) {
  return hip::launch(site, {one.kernel,
                            one.function,
                            {one.grid[0], one.grid[1], one.grid[2]},
                            one.threads,
                            one.row.data,
                            one.row.bytes,
                            one.shared_bytes});
}

[[maybe_unused]] Facts facts(int device) {
  constexpr int lds_bytes = 65536;  // of a workgroup, on every architecture at least
  return {hip_backend.processors({hip_backend.device_type, device}), lds_bytes};
}

// Memory of one launch, given back behind it in stream order.
class LaunchMemory {
 public:
  LaunchMemory() = default;
  LaunchMemory(const LaunchMemory&) = delete;
  ~LaunchMemory() {
    // Fails only where an earlier error has taken the device, and the memory with it.
    if (memory_.data != nullptr) static_cast<void>(hip_backend.memory(site_.device, site_.stream, 0, &memory_));
  }
  [[nodiscard]] tilekiln_status take(const Site& site, size_t bytes, uint32_t) {
    site_ = site;
    return hip_backend.memory(site.device, site.stream, bytes, &memory_);
  }
  [[nodiscard]] void* data() const { return memory_.data; }
  [[nodiscard]] unsigned* zeros() const { return nullptr; }

 private:
  Site site_ = {};
  DeviceMemory memory_ = {};
};

}  // namespace
}  // namespace cuda
}  // namespace tilekiln
