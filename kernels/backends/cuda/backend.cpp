// NVIDIA GPUs behind the seam: kernels loaded when they are first launched, memory and copies in stream order.
#include "kernels/runtime/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <mutex>

#include "kernels/backends/cuda/kernel.h"
#include "kernels/backends/stream_errors.h"

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
  static thread_local char text[96];
  if (driver().trouble != nullptr) return driver().trouble;
  const DeviceFacts* const fact = facts(device.id);
  if (fact == nullptr) {
    snprintf(text, sizeof(text), "there is no cuda:%d", device.id);
  } else {
    snprintf(text, sizeof(text), "cuda:%d has compute capability %d.%d", device.id, fact->major, fact->minor);
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
  if (module == nullptr)
    TILEKILN_TRY(check(cuda.cuModuleLoadData(&module, launch.kernel->image), device, launch.kernel->name));
  TILEKILN_TRY(check(cuda.cuModuleGetFunction(function, module, launch.function), device, launch.kernel->name));
  const auto bytes = static_cast<int>(launch.shared_bytes);
  TILEKILN_TRY(check(cuda.cuFuncSetAttribute(*function, attribute_shared_bytes, bytes), device, launch.kernel->name));
  loaded.store(
      new Loaded{launch.kernel, launch.function, device, module, *function, loaded.load(std::memory_order_relaxed)},
      std::memory_order_release);
  return TILEKILN_OK;
}

// Null of the seam's streams: all has ended when a function returns.
tilekiln_status end(int device, NativeStream stream, Opaque waited, const char* what) {
  return stream != nullptr ? TILEKILN_OK : check(driver().cuStreamSynchronize(waited), device, what);
}

tilekiln_status run_stage(Device device, NativeStream stream, const Launch& launch) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  const auto* const engine = static_cast<const Engine*>(launch.choice->engine);
  return (engine->of != nullptr ? engine->of : engine)->launch({device, stream, launch.choice}, launch.problem);
}

tilekiln_status memory(Device device, NativeStream stream, size_t bytes, DeviceMemory* memory) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  const Driver& cuda = driver();
  if (bytes == 0) {
    const auto at = reinterpret_cast<Pointer>(memory->base);
    *memory = {};
    return check(stream == nullptr ? cuda.cuMemFree_v2(at) : cuda.cuMemFreeAsync(at, native(stream)), device.id,
                 "giving memory back");
  }
  Pointer at = 0;
  TILEKILN_TRY(stream == nullptr ? check(cuda.cuMemAlloc_v2(&at, bytes), device.id, "memory for a call")
                                 : allocate(device.id, stream, bytes, &at));
  *memory = {reinterpret_cast<void*>(at), reinterpret_cast<void*>(at), bytes};
  return TILEKILN_OK;
}

tilekiln_status fill(Device device, NativeStream stream, void* to, int byte, size_t bytes) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  TILEKILN_TRY(check(
      driver().cuMemsetD8Async(reinterpret_cast<Pointer>(to), static_cast<unsigned char>(byte), bytes, native(stream)),
      device.id, "filling memory"));
  return end(device.id, stream, native(stream), "filling memory");
}

tilekiln_status captured(Device device, NativeStream stream, bool* yes) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  int capturing = 0;
  const Result result = driver().cuStreamIsCapturing(native(stream), &capturing);
  constexpr Result implicit =
      906;  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: another stream is, which the default one would join
  *yes = capturing != 0 || result == implicit;
  return *yes ? TILEKILN_OK : check(result, device.id, "asking a stream");
}

tilekiln_status copy(Device device, NativeStream stream, void* to, const void* from, size_t bytes,
                     Direction direction) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  const Driver& cuda = driver();
  if (direction != Direction::on_device) {
    // A graph would read the host's memory when it is replayed.
    bool yes = false;
    TILEKILN_TRY(captured(device, stream, &yes));
    if (yes)
      return fail_argument("stream", "was being captured into a graph, must not be by %s",
                           direction == Direction::staged ? "steps over memory of the host that run once"
                                                          : "a call that reads on the host");
  }
  if (direction == Direction::staged)
    return check(
        cuda.cuMemcpyAsync(reinterpret_cast<Pointer>(to), reinterpret_cast<Pointer>(from), bytes, native(stream)),
        device.id, "a copy");
  // Memory that the host reads now may be the work of any stream, also of those that do not wait for the default one.
  if (stream == nullptr && direction == Direction::to_host)
    TILEKILN_TRY(check(cuda.cuCtxSynchronize(), device.id, "waiting for what is to be read on the host"));
  TILEKILN_TRY(
      check(cuda.cuMemcpyAsync(reinterpret_cast<Pointer>(to), reinterpret_cast<Pointer>(from), bytes, native(stream)),
            device.id, "a copy"));
  return end(device.id, direction == Direction::to_host ? nullptr : stream, native(stream), "a copy");
}

// Never destroyed: streams may still run while the process exits.
StreamErrors& stream_errors() {
  static StreamErrors* const errors = new StreamErrors;
  return *errors;
}

tilekiln_status host(Device device, NativeStream stream, tilekiln_status (*function)(void*), void* context) {
  if (stream == nullptr) return function(context);
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  bool yes = false;
  TILEKILN_TRY(captured(device, stream, &yes));
  if (yes)
    return fail_argument("stream", "was being captured into a graph, must not be by %s",
                         "steps over memory of the host that run once");
  return stream_errors().run_later(device.id, native(stream), function, context, [&](void (*run)(void*), void* step) {
    return check(driver().cuLaunchHostFunc(native(stream), run, step), device.id, "a function of the host");
  });
}

tilekiln_status wait(Device device, NativeStream stream) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  TILEKILN_TRY(check(driver().cuStreamSynchronize(native(stream)), device.id, "waiting for a stream"));
  return stream_errors().first(device.id, native(stream));
}

// `context` is the device's number.
void* allocate_pinned(void* context, size_t bytes) {
  const Entered entered(static_cast<int>(reinterpret_cast<intptr_t>(context)));
  void* memory = nullptr;
  constexpr unsigned portable = 1;  // CU_MEMHOSTALLOC_PORTABLE
  if (entered.status() != TILEKILN_OK || driver().cuMemHostAlloc(&memory, bytes, portable) != 0) return nullptr;
  return memory;
}
void release_pinned(void* context, void* memory, size_t) {
  const Entered entered(static_cast<int>(reinterpret_cast<intptr_t>(context)));
  static_cast<void>(driver().cuMemFreeHost(memory));  // fails only where the context is gone, and the memory with it
}
tilekiln_staging_allocator staging(Device device) {
  return {sizeof(tilekiln_staging_allocator), allocate_pinned, release_pinned,
          reinterpret_cast<void*>(static_cast<intptr_t>(device.id))};
}
bool is_pinned(Device device, const void* memory) {
  const Entered entered(device.id);
  unsigned flags = 0;
  return entered.status() == TILEKILN_OK && driver().cuMemHostGetFlags(&flags, const_cast<void*>(memory)) == 0;
}

tilekiln_status query(Device device, NativeStream stream, bool* idle) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  constexpr Result not_ready = 600;
  const Result result = driver().cuStreamQuery(native(stream));
  *idle = result == 0;
  return result == not_ready ? TILEKILN_OK : check(result, device.id, "asking a stream");
}

}  // namespace

tilekiln_status launch(const Site& site, const KernelLaunch& launch) {
  Opaque function = nullptr;
  TILEKILN_TRY(load(site.device.id, launch, &function));
  void* parameters[] = {const_cast<void*>(launch.row)};
  const unsigned *grid = launch.grid, threads = launch.threads, shared_bytes = launch.shared_bytes;
  const Opaque stream = native(site.stream);
  const Result result = launch.together
                            ? driver().cuLaunchCooperativeKernel(function, grid[0], grid[1], grid[2], threads, 1, 1,
                                                                 shared_bytes, stream, parameters)
                            : driver().cuLaunchKernel(function, grid[0], grid[1], grid[2], threads, 1, 1, shared_bytes,
                                                      stream, parameters, nullptr);
  TILEKILN_TRY(check(result, site.device.id, launch.kernel->name));
  return end(site.device.id, site.stream, stream, launch.kernel->name);
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
                              cuda::memory,
                              cuda::fill,
                              cuda::copy,
                              cuda::host,
                              cuda::wait,
                              cuda::query,
                              cuda::captured,
                              cuda::absent,
                              cuda::processors,
                              cuda::staging,
                              cuda::is_pinned};

}  // namespace tilekiln
