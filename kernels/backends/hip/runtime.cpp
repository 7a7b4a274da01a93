// SPDX-License-Identifier: MIT
#include "kernels/backends/hip/runtime.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <initializer_list>

namespace tilekiln::hip {
namespace {

// Null, and a sentence's end in `trouble`, where there is none.
void* find_library(char* trouble, size_t capacity) {
  const char* const named = getenv("TILEKILN_HIP_LIBRARY");
  if (named != nullptr && *named != '\0') {
    void* const library = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) snprintf(trouble, capacity, "TILEKILN_HIP_LIBRARY cannot be loaded: %s", dlerror());
    return library;
  }
  // Two runtimes in a process would not know each other's streams and memory: the one that a framework brought comes first.
  if (dlsym(RTLD_DEFAULT, "hipModuleLaunchKernel") != nullptr) return dlopen(nullptr, RTLD_NOW);
  static const char* const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};
  for (const int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : names) {
      if (void* const library = dlopen(name, flags)) return library;
    }
  }
  snprintf(trouble, capacity, "there is no HIP runtime (libamdhip64.so of ROCm 5, 6 or 7)");
  return nullptr;
}

Runtime find_runtime() {
  static char trouble[256];
  Runtime found = {};
  found.trouble = trouble;
  void* const library = find_library(trouble, sizeof(trouble));
  if (library == nullptr) return found;
  const auto lacks = [&](const char* name) {
    snprintf(trouble, sizeof(trouble), "the HIP runtime is older than ROCm 5.3: it lacks %s", name);
    return found;
  };
#define TILEKILN_HIP_LOAD(name, parameters)                                \
  found.name = reinterpret_cast<Result(*) parameters>(dlsym(library, #name)); \
  if (found.name == nullptr) return lacks(#name);
  TILEKILN_HIP_FUNCTIONS(TILEKILN_HIP_LOAD)
#undef TILEKILN_HIP_LOAD
  found.hipGetErrorName = reinterpret_cast<const char* (*)(Result)>(dlsym(library, "hipGetErrorName"));
  found.hipGetErrorString = reinterpret_cast<const char* (*)(Result)>(dlsym(library, "hipGetErrorString"));
  if (found.hipGetErrorName == nullptr || found.hipGetErrorString == nullptr) return lacks("hipGetErrorString");
  const Result begun = found.hipInit(0);
  const Result counted = begun == 0 ? found.hipGetDeviceCount(&found.devices) : begun;
  if (counted == 0 && found.devices > 0) {
    found.trouble = nullptr;
    return found;
  }
  snprintf(trouble, sizeof(trouble), "the HIP runtime answers: %s",
           counted == 0 ? "it shows no GPU" : found.hipGetErrorString(counted));
  found.devices = 0;
  return found;
}

}  // namespace

const Runtime& runtime() {
  static const Runtime found = find_runtime();
  return found;
}

tilekiln_status check(Result result, int device, const char* what) {
  if (__builtin_expect(result == 0, 1)) return TILEKILN_OK;
  constexpr Result out_of_memory = 2;
  const Runtime& hip = runtime();
  hip.hipGetLastError();  // it is told here, and not again to who asks next
  return fail(result == out_of_memory ? TILEKILN_OUT_OF_MEMORY : TILEKILN_INTERNAL, "hip:%d: %s failed: %s (%s)",
              device, what, hip.hipGetErrorName(result), hip.hipGetErrorString(result));
}

Entered::Entered(int device) {
  const Runtime& hip = runtime();
  if (hip.trouble != nullptr) {
    status_ = fail(TILEKILN_INTERNAL, "hip:%d: %s", device, hip.trouble);
    return;
  }
  int current = -1;
  status_ = check(hip.hipGetDevice(&current), device, "asking for the current device");
  if (status_ != TILEKILN_OK || current == device) return;
  status_ = check(hip.hipSetDevice(device), device, "choosing the device");
  if (status_ == TILEKILN_OK) before_ = current;
}

Entered::~Entered() {
  if (before_ >= 0) static_cast<void>(runtime().hipSetDevice(before_));
}

}  // namespace tilekiln::hip
