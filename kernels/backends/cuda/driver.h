// SPDX-License-Identifier: MIT
// The CUDA driver, found when it is first needed: no library that holds CUDA kernels is linked to one.
//
// Handles are those of cuda.h as plain words, so that nothing here needs a header of CUDA.
#pragma once
#include "kernels/backends/cuda/launch_config.h"
#include "kernels/runtime/backend.h"

namespace tilekiln::cuda {

using Result = int;  // CUresult; 0: success
using Pointer = unsigned long long;
using Opaque = void*;  // contexts, modules, functions, streams

constexpr int most_devices = 64;

// name, parameters. Names are those that libcuda.so.1 exports.
#define TILEKILN_CUDA_FUNCTIONS(X)                                                                                 \
  X(cuInit, (unsigned flags))                                                                                      \
  X(cuGetErrorName, (Result error, const char** text))                                                             \
  X(cuGetErrorString, (Result error, const char** text))                                                           \
  X(cuDeviceGetCount, (int* count))                                                                                \
  X(cuDeviceGet, (int* device, int ordinal))                                                                       \
  X(cuDeviceGetAttribute, (int* value, int attribute, int device))                                                 \
  X(cuDevicePrimaryCtxRetain, (Opaque * context, int device))                                                      \
  X(cuCtxGetCurrent, (Opaque * context))                                                                           \
  X(cuCtxPushCurrent_v2, (Opaque context))                                                                         \
  X(cuCtxPopCurrent_v2, (Opaque * context))                                                                        \
  X(cuCtxSynchronize, ())                                                                                          \
  X(cuModuleLoadData, (Opaque * module, const void* image))                                                        \
  X(cuModuleGetFunction, (Opaque * function, Opaque module, const char* name))                                     \
  X(cuFuncSetAttribute, (Opaque function, int attribute, int value))                                               \
  X(cuLaunchKernel, (Opaque function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,         \
                     unsigned block_y, unsigned block_z, unsigned shared_bytes, Opaque stream, void** parameters,  \
                     void** extra))                                                                                \
  X(cuLaunchCooperativeKernel, (Opaque function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
                                unsigned block_y, unsigned block_z, unsigned shared_bytes, Opaque stream,          \
                                void** parameters))                                                                \
  X(cuLaunchKernelEx, (const LaunchConfig* config, Opaque function, void** parameters, void** extra))              \
  X(cuLaunchHostFunc, (Opaque stream, void (*function)(void*), void* context))                                     \
  X(cuMemAlloc_v2, (Pointer * memory, size_t bytes))                                                               \
  X(cuMemHostAlloc, (void** memory, size_t bytes, unsigned flags))                                                 \
  X(cuMemHostGetFlags, (unsigned* flags, void* memory))                                                            \
  X(cuMemFreeHost, (void* memory))                                                                                 \
  X(cuMemFree_v2, (Pointer memory))                                                                                \
  X(cuMemPoolCreate, (Opaque * pool, const void* properties))                                                      \
  X(cuMemPoolSetAttribute, (Opaque pool, int attribute, void* value))                                              \
  X(cuMemAllocFromPoolAsync, (Pointer * memory, size_t bytes, Opaque pool, Opaque stream))                         \
  X(cuMemFreeAsync, (Pointer memory, Opaque stream))                                                               \
  X(cuMemsetD8Async, (Pointer to, unsigned char byte, size_t bytes, Opaque stream))                                \
  X(cuMemcpyAsync, (Pointer to, Pointer from, size_t bytes, Opaque stream))                                        \
  X(cuStreamSynchronize, (Opaque stream))                                                                          \
  X(cuStreamQuery, (Opaque stream))                                                                                \
  X(cuStreamIsCapturing, (Opaque stream, int* capturing))                                                          \
  X(cuTensorMapEncodeTiled, (void* map, int type, unsigned rank, void* address, const uint64_t* lengths,           \
                             const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,        \
                             int interleave, int swizzle, int promotion, int fill))

struct Driver {
#define TILEKILN_CUDA_FIELD(name, parameters) Result(*name) parameters;
  TILEKILN_CUDA_FUNCTIONS(TILEKILN_CUDA_FIELD)
#undef TILEKILN_CUDA_FIELD
  int devices;
  const char* trouble;  // why there is no device, as a sentence's end; null: there is one
};

// Looked for once in a process.
const Driver& driver();

// One device's number, compute capability, multiprocessors and shared memory.
struct DeviceFacts { int number, major, minor, multiprocessors, shared_bytes; };  // shared_bytes: of a block, at most
// Null: there is no such device; driver().trouble may say why.
const DeviceFacts* facts(int device);

// OK, or that `what` failed, in the driver's words.
[[nodiscard]] tilekiln_status check(Result result, int device, const char* what);

// The device's primary context, which CUDA's runtime and the frameworks use, is the thread's while this lives.
class Entered {
 public:
  explicit Entered(int device);
  Entered(const Entered&) = delete;
  ~Entered();
  [[nodiscard]] tilekiln_status status() const { return status_; }

 private:
  tilekiln_status status_ = TILEKILN_OK;
  bool pushed_ = false;
};

// The driver's stream for one of the seam; null is the default stream, whose work is waited for.
inline Opaque native(NativeStream stream) {
  return stream != nullptr ? stream : reinterpret_cast<Opaque>(uintptr_t(1));  // CU_STREAM_LEGACY
}

}  // namespace tilekiln::cuda
