// SPDX-License-Identifier: MIT
// The HIP runtime, found when it is first needed: no library that holds HIP kernels is linked to one.
//
// Handles are those of hip_runtime_api.h as plain words, so that nothing here needs a header of ROCm. Only functions
// whose arguments are the same in ROCm 5, 6 and 7 are used.
#pragma once
#include "kernels/runtime/backend.h"

namespace tilekiln::hip {

using Result = int;    // hipError_t; 0: success
using Opaque = void*;  // modules, functions, streams

// name, parameters. Names are those that libamdhip64.so exports.
#define TILEKILN_HIP_FUNCTIONS(X)                                                                                \
  X(hipInit, (unsigned flags))                                                                                   \
  X(hipGetDeviceCount, (int* count))                                                                             \
  X(hipDeviceGetAttribute, (int* value, int attribute, int device))                                              \
  X(hipGetDevice, (int* device))                                                                                 \
  X(hipSetDevice, (int device))                                                                                  \
  X(hipGetLastError, ())                                                                                         \
  X(hipDeviceSynchronize, ())                                                                                    \
  X(hipModuleLoadData, (Opaque * module, const void* image))                                                     \
  X(hipModuleGetFunction, (Opaque * function, Opaque module, const char* name))                                  \
  X(hipModuleLaunchKernel, (Opaque function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, Opaque stream,            \
                            void** parameters, void** extra))                                                    \
  X(hipLaunchHostFunc, (Opaque stream, void (*function)(void*), void* context))                                  \
  X(hipMalloc, (void** memory, size_t bytes))                                                                    \
  X(hipFree, (void* memory))                                                                                     \
  X(hipHostMalloc, (void** memory, size_t bytes, unsigned flags))                                                \
  X(hipHostFree, (void* memory))                                                                                 \
  X(hipHostGetFlags, (unsigned* flags, void* memory))                                                            \
  X(hipMallocAsync, (void** memory, size_t bytes, Opaque stream))                                                \
  X(hipFreeAsync, (void* memory, Opaque stream))                                                                 \
  X(hipMemsetAsync, (void* to, int byte, size_t bytes, Opaque stream))                                           \
  X(hipMemcpyAsync, (void* to, const void* from, size_t bytes, int kind, Opaque stream))                         \
  X(hipStreamSynchronize, (Opaque stream))                                                                       \
  X(hipStreamQuery, (Opaque stream))                                                                             \
  X(hipStreamIsCapturing, (Opaque stream, int* capturing))

struct Runtime {
#define TILEKILN_HIP_FIELD(name, parameters) Result(*name) parameters;
  TILEKILN_HIP_FUNCTIONS(TILEKILN_HIP_FIELD)
#undef TILEKILN_HIP_FIELD
  const char* (*hipGetErrorName)(Result error);
  const char* (*hipGetErrorString)(Result error);
  int devices;
  const char* trouble;  // why there is no device, as a sentence's end; null: there is one
};

// Looked for once in a process: TILEKILN_HIP_LIBRARY, the runtime that the process has already, libamdhip64.so of ROCm
// 7 to 5.
const Runtime& runtime();

// OK, or that `what` failed, in the runtime's words.
[[nodiscard]] tilekiln_status check(Result result, int device, const char* what);

// The device is the thread's current one while this lives.
class Entered {
 public:
  explicit Entered(int device);
  Entered(const Entered&) = delete;
  ~Entered();
  [[nodiscard]] tilekiln_status status() const { return status_; }

 private:
  tilekiln_status status_ = TILEKILN_OK;
  int before_ = -1;
};

// The seam's word for the default stream, whose own handle is null.
inline NativeStream default_stream() { return reinterpret_cast<NativeStream>(uintptr_t(1)); }
// The runtime's stream for one of the seam; null is the default stream, whose work is waited for.
inline Opaque native(NativeStream stream) { return stream == default_stream() ? nullptr : stream; }

}  // namespace tilekiln::hip
