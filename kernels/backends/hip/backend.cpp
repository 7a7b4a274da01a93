// AMD GPUs behind the seam: kernels loaded when they are first launched, memory and copies in stream order.
#include "kernels/runtime/backend.h"

#include <stdio.h>
#include <string.h>

#include <atomic>
#include <mutex>

#include "kernels/backends/hip/kernel.h"
#include "kernels/backends/stream_errors.h"
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

// Null of the seam's streams: all has ended when a function returns.
tilekiln_status end(int device, NativeStream stream, const char* what) {
  return stream != nullptr ? TILEKILN_OK : check(runtime().hipStreamSynchronize(native(stream)), device, what);
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
  const Runtime& hip = runtime();
  if (bytes == 0) {
    void* const at = memory->base;
    *memory = {};
    return check(stream == nullptr ? hip.hipFree(at) : hip.hipFreeAsync(at, native(stream)), device.id,
                 "giving memory back");
  }
  void* at = nullptr;
  TILEKILN_TRY(check(stream == nullptr ? hip.hipMalloc(&at, bytes) : hip.hipMallocAsync(&at, bytes, native(stream)),
                     device.id, "memory for a call"));
  *memory = {at, at, bytes};
  return TILEKILN_OK;
}

tilekiln_status fill(Device device, NativeStream stream, void* to, int byte, size_t bytes) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  TILEKILN_TRY(check(runtime().hipMemsetAsync(to, byte, bytes, native(stream)), device.id, "filling memory"));
  return end(device.id, stream, "filling memory");
}

tilekiln_status captured(Device device, NativeStream stream, bool* yes) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  int capturing = 0;
  const Result result = runtime().hipStreamIsCapturing(native(stream), &capturing);
  constexpr Result implicit =
      906;  // hipErrorStreamCaptureImplicit: another stream is, which the default one would join
  *yes = capturing != 0 || result == implicit;
  return *yes ? TILEKILN_OK : check(result, device.id, "asking a stream");
}

tilekiln_status copy(Device device, NativeStream stream, void* to, const void* from, size_t bytes,
                     Direction direction) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  const Runtime& hip = runtime();
  constexpr int host_to_device = 1, device_to_host = 2, on_device = 3, by_address = 4;  // hipMemcpyKind
  int kind = on_device;
  if (direction != Direction::on_device) {
    kind = direction == Direction::to_host ? device_to_host : host_to_device;
    // A graph would read the host's memory when it is replayed.
    bool yes = false;
    TILEKILN_TRY(captured(device, stream, &yes));
    if (yes)
      return fail_argument("stream", "was being captured into a graph, must not be by %s",
                           direction == Direction::staged ? "steps over memory of the host that run once"
                                                          : "a call that reads on the host");
  }
  if (direction == Direction::staged)
    return check(hip.hipMemcpyAsync(to, from, bytes, by_address, native(stream)), device.id, "a copy");
  // Memory that the host reads now may be the work of any stream, also of those that do not wait for the default one.
  if (stream == nullptr && direction == Direction::to_host)
    TILEKILN_TRY(check(hip.hipDeviceSynchronize(), device.id, "waiting for what is to be read on the host"));
  TILEKILN_TRY(check(hip.hipMemcpyAsync(to, from, bytes, kind, native(stream)), device.id, "a copy"));
  // The seam's memory of the host has been read, or holds what was copied, when this returns.
  return direction == Direction::on_device ? end(device.id, stream, "a copy")
                                           : check(hip.hipStreamSynchronize(native(stream)), device.id, "a copy");
}

// Compute units, as many workgroups as run side by side; 1 where the runtime does not say.
int processors(Device device) {
  constexpr int multiprocessors = 63;  // hipDeviceAttributeMultiprocessorCount of ROCm 5, 6 and 7
  int count = 0;
  if (!has_device(device.id) || runtime().hipDeviceGetAttribute(&count, multiprocessors, device.id) != 0) return 1;
  return count > 0 ? count : 1;
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
    return check(runtime().hipLaunchHostFunc(native(stream), run, step), device.id, "a function of the host");
  });
}

tilekiln_status wait(Device device, NativeStream stream) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  TILEKILN_TRY(check(runtime().hipStreamSynchronize(native(stream)), device.id, "waiting for a stream"));
  return stream_errors().first(device.id, native(stream));
}

// `context` is the device's number.
void* allocate_pinned(void* context, size_t bytes) {
  const Entered entered(static_cast<int>(reinterpret_cast<intptr_t>(context)));
  void* memory = nullptr;
  constexpr unsigned portable = 1;  // hipHostMallocPortable
  if (entered.status() != TILEKILN_OK || runtime().hipHostMalloc(&memory, bytes, portable) != 0) return nullptr;
  return memory;
}
void release_pinned(void* context, void* memory, size_t) {
  const Entered entered(static_cast<int>(reinterpret_cast<intptr_t>(context)));
  static_cast<void>(runtime().hipHostFree(memory));  // fails only where the process ends, and the memory with it
}
tilekiln_staging_allocator staging(Device device) {
  return {sizeof(tilekiln_staging_allocator), allocate_pinned, release_pinned,
          reinterpret_cast<void*>(static_cast<intptr_t>(device.id))};
}
bool is_pinned(Device device, const void* memory) {
  const Entered entered(device.id);
  unsigned flags = 0;
  if (entered.status() != TILEKILN_OK) return false;
  if (runtime().hipHostGetFlags(&flags, const_cast<void*>(memory)) == 0) return true;
  runtime().hipGetLastError();
  return false;
}

tilekiln_status query(Device device, NativeStream stream, bool* idle) {
  const Entered entered(device.id);
  TILEKILN_TRY(entered.status());
  constexpr Result not_ready = 600;
  const Result result = runtime().hipStreamQuery(native(stream));
  *idle = result == 0;
  return result == not_ready ? TILEKILN_OK : check(result, device.id, "asking a stream");
}

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
                                               1, 1, 0, native(site.stream), nullptr, extra),
                     device, launch.kernel->name));
  return end(device, site.stream, launch.kernel->name);
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
                             hip::memory,
                             hip::fill,
                             hip::copy,
                             hip::host,
                             hip::wait,
                             hip::query,
                             hip::captured,
                             hip::absent,
                             hip::processors,
                             hip::staging,
                             hip::is_pinned};

}  // namespace tilekiln
