// SPDX-License-Identifier: MIT
// NVIDIA GPUs behind the seam: kernels loaded when they are first launched, memory and copies in stream order.
#include "kernels/runtime/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "kernels/backends/cuda/changed.h"
#include "kernels/backends/cuda/kernel.h"
#include "kernels/backends/streams.h"

namespace tilekiln {
namespace cuda {
namespace {

// "sm_90a": 9.0 alone; "sm_80": from 8.0 on, of later major versions by the PTX that its kernels hold too.
bool runs(const DeviceFacts& fact, const Target& target) {
  char* end = nullptr;
  const long needs = strtol(target.arch + strlen("sm_"), &end, 10), has = fact.major * 10 + fact.minor;
  return *end == 'a' ? has == needs : has >= needs;
}

bool has(Device device, const Target& target) {
  const DeviceFacts* const fact = facts(device.id);
  return fact != nullptr && runs(*fact, target);
}

const char* absent(Device device, const Target&) {
  static thread_local char text[160];
  if (driver().trouble != nullptr) return driver().trouble;
  const DeviceFacts* const fact = facts(device.id);
  if (fact == nullptr) {
    snprintf(text, sizeof(text), "there is no cuda:%d", device.id);
  } else {
    const char* const other =
        fact->major < 8 ? ", must have 8.0 or more" : "; cuda-sm80 serves it (scons target=cuda-sm80,native)";
    snprintf(text, sizeof(text), "cuda:%d has compute capability %d.%d%s", device.id, fact->major, fact->minor, other);
  }
  return text;
}

int processors(Device device) {
  const DeviceFacts* const fact = facts(device.id);
  return fact != nullptr ? fact->multiprocessors : 1;
}

// A function of a kernel on a device; a list that only grows.
struct Loaded {
  const Kernel* kernel;
  const char* name;
  int device;
  Opaque module, function;
  Loaded* next;
};
std::atomic<Loaded*> loaded = nullptr;

tilekiln_status load(int device, const KernelLaunch& launch, Opaque* function) {
  Opaque module = nullptr;  // of another function of the kernel
  const auto known = [&] {
    for (const Loaded* one = loaded.load(std::memory_order_acquire); one != nullptr; one = one->next) {
      if (one->kernel != launch.kernel || one->device != device) continue;
      module = one->module;
      if (strcmp(one->name, launch.function) == 0) return one->function;
    }
    return Opaque(nullptr);
  };
  *function = known();
  if (__builtin_expect(*function != nullptr, 1)) return TILEKILN_OK;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  *function = known();
  if (*function != nullptr) return TILEKILN_OK;
  const Driver& cuda = driver();
  constexpr int attribute_shared_bytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
  if (module == nullptr) {
    const Kernel& kernel = *launch.kernel;
    Image own;
    if (kernel.of != nullptr && !own.make(kernel.of->image, kernel.image))
      return fail(TILEKILN_INTERNAL, "%s: there is no host memory for its image", kernel.name);
    TILEKILN_TRY(
        check(cuda.cuModuleLoadData(&module, kernel.of != nullptr ? own.bytes : kernel.image), device, kernel.name));
  }
  TILEKILN_TRY(check(cuda.cuModuleGetFunction(function, module, launch.function), device, launch.kernel->name));
  const auto bytes = static_cast<int>(std::max(launch.shared_bytes, launch.most_shared_bytes));
  TILEKILN_TRY(check(cuda.cuFuncSetAttribute(*function, attribute_shared_bytes, bytes), device, launch.kernel->name));
  loaded.store(
      new Loaded{launch.kernel, launch.function, device, module, *function, loaded.load(std::memory_order_relaxed)},
      std::memory_order_release);
  return TILEKILN_OK;
}

tilekiln_status run_stage(Device device, NativeStream stream, const Launch& launch) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  const auto* const engine = static_cast<const Engine*>(launch.choice->engine);
  return (engine->of != nullptr ? engine->of : engine)->launch({device, stream, launch.choice}, launch.problem);
}

// The driver as Streams has it.
struct Api {
  using Entered = cuda::Entered;
  static constexpr bool copies_host_memory_at_once = true;
  static Pointer address(const void* memory) { return reinterpret_cast<Pointer>(memory); }
  static tilekiln_status check(Result result, int device, const char* what) {
    return cuda::check(result, device, what);
  }
  static Opaque native(NativeStream stream) { return cuda::native(stream); }
  static Result synchronize(Opaque stream) { return driver().cuStreamSynchronize(stream); }
  static Result synchronize_device() { return driver().cuCtxSynchronize(); }
  static Result query(Opaque stream) { return driver().cuStreamQuery(stream); }
  static Result capturing(Opaque stream, int* yes) { return driver().cuStreamIsCapturing(stream, yes); }
  static Result run_on_host(Opaque stream, void (*function)(void*), void* context) {
    return driver().cuLaunchHostFunc(stream, function, context);
  }
  static Result copy(void* to, const void* from, size_t bytes, Direction, Opaque stream) {
    return driver().cuMemcpyAsync(address(to), address(from), bytes, stream);
  }
  static Result fill(void* to, int byte, size_t bytes, Opaque stream) {
    return driver().cuMemsetD8Async(address(to), static_cast<unsigned char>(byte), bytes, stream);
  }
  static tilekiln_status allocate(int device, NativeStream stream, size_t bytes, void** memory) {
    Pointer at = 0;
    TILEKILN_TRY(stream == nullptr ? check(driver().cuMemAlloc_v2(&at, bytes), device, "memory for a call")
                                   : cuda::allocate(device, stream, bytes, &at));
    *memory = reinterpret_cast<void*>(at);
    return TILEKILN_OK;
  }
  static Result release(NativeStream stream, void* memory) {
    return stream == nullptr ? driver().cuMemFree_v2(address(memory))
                             : driver().cuMemFreeAsync(address(memory), native(stream));
  }
  static Result allocate_pinned(void** memory, size_t bytes) {
    constexpr unsigned portable = 1;  // CU_MEMHOSTALLOC_PORTABLE
    return driver().cuMemHostAlloc(memory, bytes, portable);
  }
  static Result release_pinned(void* memory) { return driver().cuMemFreeHost(memory); }
  static bool is_pinned(const void* memory) {
    unsigned flags = 0;
    return driver().cuMemHostGetFlags(&flags, const_cast<void*>(memory)) == 0;
  }
};
using DriverStreams = Streams<Api>;

}  // namespace

namespace {

// Launches with attributes: begun early, or in clusters.
Result launch_with(Opaque function, const KernelLaunch& launch, Opaque stream, void** parameters) {
  LaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (launch.early) attributes[count++] = {LaunchAttribute::programmatic, 0, {1}};
  if (launch.cluster != 1) attributes[count++] = {LaunchAttribute::cluster_dimension, 0, {launch.cluster, 1, 1}};
  const LaunchConfig config = {{launch.grid[0], launch.grid[1], launch.grid[2]},
                               {launch.threads, 1, 1},
                               launch.shared_bytes,
                               stream,
                               attributes,
                               count};
  return driver().cuLaunchKernelEx(&config, function, parameters, nullptr);
}

}  // namespace

tilekiln_status launch(const Site& site, const KernelLaunch& launch) {
  Opaque function = nullptr;
  TILEKILN_TRY(load(site.device.id, launch, &function));
  void* parameters[] = {const_cast<void*>(launch.row)};
  const unsigned *grid = launch.grid, threads = launch.threads, shared_bytes = launch.shared_bytes;
  const Opaque stream = native(site.stream);
  const auto start = [&] {
    if (launch.early || launch.cluster != 1) return launch_with(function, launch, stream, parameters);
    if (launch.together)
      return driver().cuLaunchCooperativeKernel(function, grid[0], grid[1], grid[2], threads, 1, 1, shared_bytes,
                                                stream, parameters);
    return driver().cuLaunchKernel(function, grid[0], grid[1], grid[2], threads, 1, 1, shared_bytes, stream, parameters,
                                   nullptr);
  };
  const Result result = start();
  TILEKILN_TRY(check(result, site.device.id, launch.kernel->name));
  return DriverStreams::end(site.device.id, site.stream, launch.kernel->name);
}

}  // namespace cuda

extern const Backend cuda_backend;
const Backend cuda_backend = {"cuda",
                              2,
                              false,
                              false,
                              false,
                              reinterpret_cast<NativeStream>(uintptr_t(1)),  // CU_STREAM_LEGACY
                              cuda::has,
                              cuda::run_stage,
                              cuda::DriverStreams::memory,
                              cuda::DriverStreams::fill,
                              cuda::DriverStreams::copy,
                              cuda::DriverStreams::host,
                              cuda::DriverStreams::wait,
                              cuda::DriverStreams::query,
                              cuda::DriverStreams::captured,
                              cuda::absent,
                              cuda::processors,
                              cuda::DriverStreams::staging,
                              cuda::DriverStreams::is_pinned};

}  // namespace tilekiln
