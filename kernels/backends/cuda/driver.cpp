// SPDX-License-Identifier: MIT
#include "kernels/backends/cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>

#include <mutex>

namespace tilekiln::cuda {
namespace {

constexpr int attribute_multiprocessors = 16, attribute_major = 75, attribute_minor = 76,
              attribute_shared_bytes = 97;  // CUdevice_attribute

Driver find_driver() {
  static char trouble[256];
  Driver found = {};
  found.trouble = trouble;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    snprintf(trouble, sizeof(trouble), "there is no NVIDIA driver (%s)", dlerror());
    return found;
  }
#define TILEKILN_CUDA_LOAD(name, parameters)                                                               \
  found.name = reinterpret_cast<Result(*) parameters>(dlsym(library, #name));                              \
  if (found.name == nullptr) {                                                                             \
    snprintf(trouble, sizeof(trouble), "the NVIDIA driver is older than CUDA 12: libcuda.so.1 lacks %s", #name); \
    return found;                                                                                          \
  }
  TILEKILN_CUDA_FUNCTIONS(TILEKILN_CUDA_LOAD)
#undef TILEKILN_CUDA_LOAD
  const Result begun = found.cuInit(0);
  const Result counted = begun == 0 ? found.cuDeviceGetCount(&found.devices) : begun;
  if (counted == 0 && found.devices > 0) {
    found.trouble = nullptr;
    return found;
  }
  const char* said = "it shows no GPU";
  if (counted != 0 && found.cuGetErrorString(counted, &said) != 0) said = "it cannot begin";
  snprintf(trouble, sizeof(trouble), "the NVIDIA driver answers: %s", said);
  found.devices = 0;
  return found;
}

}  // namespace

const Driver& driver() {
  static const Driver found = find_driver();
  return found;
}

const DeviceFacts* facts(int device) {
  static std::mutex mutex;
  static DeviceFacts known[most_devices];
  static bool asked[most_devices];
  if (device < 0 || device >= driver().devices || device >= most_devices) return nullptr;
  if (__atomic_load_n(&asked[device], __ATOMIC_ACQUIRE)) return &known[device];
  const std::lock_guard lock(mutex);
  if (asked[device]) return &known[device];
  const Driver& cuda = driver();
  DeviceFacts fact = {};
  const auto attribute = [&](int which, int* value) {
    return cuda.cuDeviceGetAttribute(value, which, fact.number) == 0;
  };
  if (cuda.cuDeviceGet(&fact.number, device) != 0 || !attribute(attribute_major, &fact.major) ||
      !attribute(attribute_minor, &fact.minor) || !attribute(attribute_multiprocessors, &fact.multiprocessors) ||
      !attribute(attribute_shared_bytes, &fact.shared_bytes))
    return nullptr;
  known[device] = fact;
  __atomic_store_n(&asked[device], true, __ATOMIC_RELEASE);
  return &known[device];
}

tilekiln_status check(Result result, int device, const char* what) {
  if (__builtin_expect(result == 0, 1)) return TILEKILN_OK;
  const char *name = "an error without a name", *text = "?";
  static_cast<void>(driver().cuGetErrorName(result, &name));
  static_cast<void>(driver().cuGetErrorString(result, &text));
  constexpr Result out_of_memory = 2;
  return fail(result == out_of_memory ? TILEKILN_OUT_OF_MEMORY : TILEKILN_INTERNAL, "cuda:%d: %s: %s (%s, %d)", device,
              what, text, name, result);
}

Entered::Entered(int device) {
  const Driver& cuda = driver();
  const DeviceFacts* const fact = facts(device);
  if (fact == nullptr) {
    status_ = fail(TILEKILN_INTERNAL, "cuda:%d: %s", device,
                   cuda.trouble != nullptr ? cuda.trouble : "there is no such device");
    return;
  }
  // Contexts are made when they are needed: asking about a device makes none.
  static std::mutex mutex;
  static Opaque contexts[most_devices];
  Opaque context = __atomic_load_n(&contexts[device], __ATOMIC_ACQUIRE);
  if (context == nullptr) {
    const std::lock_guard lock(mutex);
    context = contexts[device];
    if (context == nullptr) {
      status_ = check(cuda.cuDevicePrimaryCtxRetain(&context, fact->number), device, "making its context");
      if (status_ != TILEKILN_OK) return;
      __atomic_store_n(&contexts[device], context, __ATOMIC_RELEASE);
    }
  }
  Opaque current = nullptr;
  if (cuda.cuCtxGetCurrent(&current) == 0 && current == context) return;
  status_ = check(cuda.cuCtxPushCurrent_v2(context), device, "entering its context");
  pushed_ = status_ == TILEKILN_OK;
}

Entered::~Entered() {
  Opaque popped = nullptr;
  if (pushed_) static_cast<void>(driver().cuCtxPopCurrent_v2(&popped));
}

}  // namespace tilekiln::cuda
