// SPDX-License-Identifier: MIT
// AMD GPUs behind the seam: kernels loaded when they are first launched, memory and copies in stream order.
#include "kernels/runtime/backend.h"

#include <stdio.h>
#include <string.h>

#include <atomic>
#include <mutex>

#include "kernels/backends/hip/kernel.h"
#include "kernels/backends/streams.h"
#include "kernels/runtime/names.h"

namespace tilekiln {
namespace hip {
namespace {

// A function of a code object.
struct Function {
  const char* name;
  Opaque handle;
  Function* next;
};

// A kernel on a device, or that the device does not load it; lists that only grow.
struct Loaded {
  const Kernel* kernel;
  int device;
  Result result;  // of loading
  Opaque module;
  std::atomic<Function*> functions;
  Loaded* next;
};
std::atomic<Loaded*> every_loaded = nullptr;

// The device must be the current one.
Loaded* load(int device, const Kernel* kernel) {
  const auto known = [&]() -> Loaded* {
    for (Loaded* one = every_loaded.load(std::memory_order_acquire); one != nullptr; one = one->next) {
      if (one->kernel == kernel && one->device == device) return one;
    }
    return nullptr;
  };
  if (Loaded* const one = known(); __builtin_expect(one != nullptr, 1)) return one;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (Loaded* const one = known()) return one;
  Opaque module = nullptr;
  const Result result = runtime().hipModuleLoadData(&module, kernel->image);
  if (result != 0) runtime().hipGetLastError();
  auto* const made = new Loaded{kernel, device, result, module, nullptr, every_loaded.load(std::memory_order_relaxed)};
  every_loaded.store(made, std::memory_order_release);
  return made;
}

// One of the kernels of a target that the library holds.
const Kernel* any_kernel(const Target& target) {
  for (uint32_t instance = 0; table.fixed != nullptr && instance < table.instance_count; ++instance) {
    if (row_of(table, instance).target == target.index) return static_cast<const Engine*>(table.fixed[instance])->any();
  }
  for (uint32_t family = 0; target.engines != nullptr && family < table.family_count; ++family) {
    for (uint32_t pipeline = 0; pipeline < table.families[family].pipeline_count; ++pipeline) {
      const auto* const engine = static_cast<const Engine*>(target.engines[family][pipeline]);
      if (const Kernel* const kernel = engine != nullptr ? engine->any() : nullptr) return kernel;
    }
  }
  return nullptr;
}

bool has_device(int device) { return runtime().trouble == nullptr && device >= 0 && device < runtime().devices; }

// The runtime has no name of an architecture that is the same in all of its versions, so a kernel is loaded on trial.
bool has(Device device, const Target& target) {
  if (!has_device(device.id)) return false;
  const Kernel* const kernel = any_kernel(target);
  if (kernel == nullptr) return false;
  const Entered entered(device.id);
  return entered.status() == TILEKILN_OK && load(device.id, kernel)->result == 0;
}

const char* absent(Device device, const Target& target) {
  static thread_local char text[96];
  if (runtime().trouble != nullptr) return runtime().trouble;
  if (!has_device(device.id)) {
    snprintf(text, sizeof(text), "there is no hip:%d", device.id);
  } else {
    snprintf(text, sizeof(text), "hip:%d loads no code object of %s", device.id, target.arch);
  }
  return text;
}

tilekiln_status run_stage(Device device, NativeStream stream, const Launch& launch) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  const auto* const engine = static_cast<const Engine*>(launch.choice->engine);
  return (engine->of != nullptr ? engine->of : engine)->launch({device, stream, launch.choice}, launch.problem);
}

// Compute units, as many workgroups as run side by side; 1 where the runtime does not say.
int processors(Device device) {
  constexpr int multiprocessors = 63;  // hipDeviceAttributeMultiprocessorCount of ROCm 5, 6 and 7
  int count = 0;
  if (!has_device(device.id) || runtime().hipDeviceGetAttribute(&count, multiprocessors, device.id) != 0) return 1;
  return count > 0 ? count : 1;
}

// The runtime as Streams has it.
struct Api {
  using Entered = hip::Entered;
  static constexpr bool copies_host_memory_at_once = false;
  static tilekiln_status check(Result result, int device, const char* what) { return hip::check(result, device, what); }
  static Opaque native(NativeStream stream) { return hip::native(stream); }
  static Result synchronize(Opaque stream) { return runtime().hipStreamSynchronize(stream); }
  static Result synchronize_device() { return runtime().hipDeviceSynchronize(); }
  static Result query(Opaque stream) { return runtime().hipStreamQuery(stream); }
  static Result capturing(Opaque stream, int* yes) { return runtime().hipStreamIsCapturing(stream, yes); }
  static Result run_on_host(Opaque stream, void (*function)(void*), void* context) {
    return runtime().hipLaunchHostFunc(stream, function, context);
  }
  static Result copy(void* to, const void* from, size_t bytes, Direction direction, Opaque stream) {
    constexpr int kinds[] = {1, 2, 3, 4};  // hipMemcpyKind: to the device, to the host, on the device, by addresses
    return runtime().hipMemcpyAsync(to, from, bytes, kinds[static_cast<int>(direction)], stream);
  }
  static Result fill(void* to, int byte, size_t bytes, Opaque stream) {
    return runtime().hipMemsetAsync(to, byte, bytes, stream);
  }
  static tilekiln_status allocate(int device, NativeStream stream, size_t bytes, void** memory) {
    return check(stream == nullptr ? runtime().hipMalloc(memory, bytes)
                                   : runtime().hipMallocAsync(memory, bytes, native(stream)),
                 device, "memory for a call");
  }
  static Result release(NativeStream stream, void* memory) {
    return stream == nullptr ? runtime().hipFree(memory) : runtime().hipFreeAsync(memory, native(stream));
  }
  static Result allocate_pinned(void** memory, size_t bytes) {
    constexpr unsigned portable = 1;  // hipHostMallocPortable
    return runtime().hipHostMalloc(memory, bytes, portable);
  }
  static Result release_pinned(void* memory) { return runtime().hipHostFree(memory); }
  static bool is_pinned(const void* memory) {
    unsigned flags = 0;
    if (runtime().hipHostGetFlags(&flags, const_cast<void*>(memory)) == 0) return true;
    runtime().hipGetLastError();
    return false;
  }
};
using RuntimeStreams = Streams<Api>;

}  // namespace

tilekiln_status launch(const Site& site, const KernelLaunch& launch) {
  const Runtime& hip = runtime();
  const int device = site.device.id;
  Loaded* const loaded = load(device, launch.kernel);
  if (loaded->result != 0) return check(loaded->result, device, launch.kernel->name);
  Opaque function = nullptr;
  for (Function* one = loaded->functions.load(std::memory_order_acquire); one != nullptr; one = one->next) {
    if (one->name == launch.function || strcmp(one->name, launch.function) == 0) function = one->handle;
  }
  if (__builtin_expect(function == nullptr, 0)) {  // two threads that ask at once are told the same
    TILEKILN_TRY(
        check(hip.hipModuleGetFunction(&function, loaded->module, launch.function), device, launch.kernel->name));
    auto* const made = new Function{launch.function, function, loaded->functions.load(std::memory_order_relaxed)};
    while (!loaded->functions.compare_exchange_weak(made->next, made, std::memory_order_release)) {
    }
  }
  // HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END: the argument as one packed buffer.
  size_t bytes = launch.problem_bytes;
  void* extra[] = {reinterpret_cast<void*>(uintptr_t(1)), const_cast<void*>(launch.problem),
                   reinterpret_cast<void*>(uintptr_t(2)), &bytes, reinterpret_cast<void*>(uintptr_t(3))};
  TILEKILN_TRY(check(hip.hipModuleLaunchKernel(function, launch.grid[0], launch.grid[1], launch.grid[2], launch.threads,
                                               1, 1, launch.shared_bytes, native(site.stream), nullptr, extra),
                     device, launch.kernel->name));
  return RuntimeStreams::end(device, site.stream, launch.kernel->name);
}

}  // namespace hip

extern const Backend hip_backend;
const Backend hip_backend = {"hip",
                             10,
                             false,
                             false,
                             false,
                             reinterpret_cast<NativeStream>(uintptr_t(1)),  // hip::default_stream()
                             hip::has,
                             hip::run_stage,
                             hip::RuntimeStreams::memory,
                             hip::RuntimeStreams::fill,
                             hip::RuntimeStreams::copy,
                             hip::RuntimeStreams::host,
                             hip::RuntimeStreams::wait,
                             hip::RuntimeStreams::query,
                             hip::RuntimeStreams::captured,
                             hip::absent,
                             hip::processors,
                             hip::RuntimeStreams::staging,
                             hip::RuntimeStreams::is_pinned};

}  // namespace tilekiln
