// SPDX-License-Identifier: MIT
// A libcuda.so.1 without a GPU, for the host side of the CUDA backend: "device" memory is the host's, kernels do not run, and everything asked of
// it is counted. It shows what a library asks of a driver, and nothing of what kernels compute.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/ampere_params.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/params.h"
#include "kernels/attention/fmha_fwd/cuda/ampere_params.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/params.h"
#include "kernels/backends/cuda/launch_config.h"
#include "kernels/gemm/gemm/cuda/params.h"

#define EXPORT extern "C"

using AmpereRow = tilekiln::cuda::fmha_fwd::AmpereParams;
using Row = tilekiln::cuda::fmha_fwd::Params;
using AmpereBackwardRow = tilekiln::cuda::fmha_bwd::AmpereParams;
using BackwardRow = tilekiln::cuda::fmha_bwd::Params;
using DecodeRow = tilekiln::cuda::fmha_decode::Params;
using tilekiln::cuda::LaunchConfig;
using ProductParams = tilekiln::cuda::gemm::Params;

extern "C" {
int stub_devices = 1, stub_major = 9, stub_minor = 0;
int stub_capturing = 0, stub_launch_error = 0;
int stub_inits = 0, stub_modules = 0, stub_launches = 0, stub_waits = 0, stub_allocated = 0, stub_maps = 0;
int stub_encode_error = 0;
unsigned stub_grid = 0, stub_threads = 0, stub_shared_bytes = 0, stub_cluster = 0;
uint64_t stub_stream = 0;
char stub_name[64] = "";
uint64_t stub_lengths[3][5] = {}, stub_strides[3][4] = {};
uint32_t stub_boxes[3][5] = {};
Row stub_row = {};
DecodeRow stub_decode_row = {};      // of the last launch over a KV cache by decode
BackwardRow stub_backward_row = {};  // of the last launch of any of its stages
ProductParams stub_product = {};
AmpereRow stub_ampere_row = {};
AmpereBackwardRow stub_ampere_backward_row = {};
int stub_together = 0, stub_early = 0, stub_stages = 0, stub_pinned = 0, stub_host_steps = 0;
// The numbers that packed sequences of the last launch had on the device: starts and lengths of q and k, 16 of each at most.
int stub_sequences[4][16] = {};
}
EXPORT int stub_row_bytes() { return sizeof(Row); }
// Steps of the last launch without tensor maps: where q and k lie.
EXPORT void stub_ampere_steps(int64_t* to) {
  const AmpereRow& p = stub_ampere_row;
  const int64_t steps[] = {p.q_batch, p.q_head, p.q_row, p.k_page, p.k_head, p.k_row, p.hdim_q};
  memcpy(to, steps, sizeof(steps));
}
EXPORT void stub_backward_steps(int64_t* to) {
  const AmpereBackwardRow& p = stub_ampere_backward_row;
  const int64_t steps[] = {p.q_batch, p.q_head, p.q_row, p.k_batch, p.k_head, p.k_row, p.v_batch};
  memcpy(to, steps, sizeof(steps));
}
EXPORT void stub_product_sizes(int* to) {
  const ProductParams& p = stub_product;
  const int sizes[] = {p.m,         p.n,          p.k,        p.grid.tiles_m, p.grid.tiles_n, p.grid.tiles, p.a_batches,
                       p.b_batches, p.activation, p.features, p.grid.steps,   p.grid.whole,   p.grid.shared};
  memcpy(to, sizes, sizeof(sizes));
}
EXPORT int stub_backward_row_bytes() { return sizeof(BackwardRow); }

using Opaque = void*;
using Pointer = unsigned long long;

EXPORT int cuInit(unsigned) { return ++stub_inits, 0; }
EXPORT int cuGetErrorName(int error, const char** text) {
  return *text = error == 719 ? "CUDA_ERROR_LAUNCH_FAILED"
                 : error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY"
                              : "CUDA_ERROR_OTHER",
         0;
}
EXPORT int cuGetErrorString(int, const char** text) { return *text = "as the stub was told", 0; }
EXPORT int cuDeviceGetCount(int* count) { return *count = stub_devices, 0; }
EXPORT int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16   ? 132
           : attribute == 75 ? stub_major
           : attribute == 76 ? stub_minor
           : attribute == 97 ? 232448
                             : 0;
  return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(Opaque* context, int) { return *context = &stub_devices, 0; }
static thread_local Opaque current = nullptr;
EXPORT int cuCtxGetCurrent(Opaque* context) { return *context = current, 0; }
EXPORT int cuCtxPushCurrent_v2(Opaque context) { return current = context, 0; }
EXPORT int cuCtxPopCurrent_v2(Opaque* context) { return *context = current, current = nullptr, 0; }
EXPORT int cuCtxSynchronize() { return ++stub_waits, 0; }
EXPORT int cuModuleLoadData(Opaque* module, const void* image) {
  // A cubin, or a fatbin of one and PTX.
  if (memcmp(image, "\177ELF", 4) != 0 && memcmp(image, "\x50\xed\x55\xba", 4) != 0)
    return 200;  // CUDA_ERROR_INVALID_IMAGE
  return ++stub_modules, *module = const_cast<void*>(image), 0;
}
EXPORT int cuModuleGetFunction(Opaque* function, Opaque module, const char* name) {
  strncpy(stub_name, name, sizeof(stub_name) - 1);
  static_cast<void>(module);
  return *function = strdup(name), 0;  // a function is its name
}
EXPORT int cuFuncSetAttribute(Opaque, int, int) { return 0; }
EXPORT int cuLaunchKernel(Opaque function, unsigned grid, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                          unsigned shared_bytes, Opaque stream, void** parameters, void**) {
  if (stub_launch_error != 0) return stub_launch_error;
  ++stub_launches;
  stub_grid = grid, stub_threads = threads, stub_shared_bytes = shared_bytes;
  stub_stream = reinterpret_cast<uint64_t>(stream);
  strncpy(stub_name, static_cast<const char*>(function), sizeof(stub_name) - 1);
  if (strcmp(stub_name, "fmha_bwd_ampere") == 0)
    memcpy(&stub_ampere_backward_row, parameters[0], sizeof(AmpereBackwardRow));
  if (strncmp(stub_name, "fmha_bwd", 8) == 0) {
    memcpy(&stub_backward_row, parameters[0], sizeof(BackwardRow));
    return ++stub_stages, 0;
  }
  if (strncmp(stub_name, "fmha_decode_linear", 18) == 0)
    return memcpy(&stub_decode_row, parameters[0], sizeof stub_decode_row), 0;
  if (strncmp(stub_name, "gemm_", 5) == 0) return memcpy(&stub_product, parameters[0], sizeof(ProductParams)), 0;
  if (strcmp(stub_name, "fmha_fwd_ampere") == 0)
    return memcpy(&stub_ampere_row, parameters[0], sizeof(AmpereRow)), stub_row = stub_ampere_row.common, 0;
  if (strcmp(stub_name, "fmha_fwd_hopper") != 0) return 0;  // of another row
  memcpy(&stub_row, parameters[0], sizeof(Row));
  const int* const arrays[] = {stub_row.seqstart_q, stub_row.seqstart_k, stub_row.seqlen_q, stub_row.seqlen_k};
  for (int i = 0; i < 4; ++i) {
    if (arrays[i] != nullptr)
      memcpy(stub_sequences[i], arrays[i], sizeof(int) * (stub_row.batch < 16 ? stub_row.batch : 16));
  }
  return 0;
}
EXPORT int cuLaunchCooperativeKernel(Opaque function, unsigned grid, unsigned y, unsigned z, unsigned threads, unsigned,
                                     unsigned, unsigned shared_bytes, Opaque stream, void** parameters) {
  return ++stub_together,
         cuLaunchKernel(function, grid, y, z, threads, 1, 1, shared_bytes, stream, parameters, nullptr);
}
EXPORT int cuLaunchKernelEx(const LaunchConfig* config, Opaque function, void** parameters, void** extra) {
  for (unsigned k = 0; k < config->count; ++k) {
    const tilekiln::cuda::LaunchAttribute& one = config->attributes[k];
    if (one.id == one.programmatic) ++stub_early;
    if (one.id == one.cluster_dimension) stub_cluster = one.value[0];
  }
  return cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2], config->threads[0], 1, 1,
                        config->shared_bytes, config->stream, parameters, extra);
}
EXPORT int cuLaunchHostFunc(Opaque, void (*function)(void*), void* context) {
  return ++stub_host_steps, function(context), 0;
}
// Pinned memory is what begins a page.
EXPORT int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  return ++stub_pinned, *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), 0;
}
EXPORT int cuMemHostGetFlags(unsigned*, void* memory) { return reinterpret_cast<uint64_t>(memory) % 4096 == 0 ? 0 : 1; }
EXPORT int cuMemFreeHost(void* memory) { return --stub_pinned, free(memory), 0; }
EXPORT int cuMemAlloc_v2(Pointer* memory, size_t bytes) {
  return ++stub_allocated, *memory = reinterpret_cast<Pointer>(malloc(bytes)), 0;
}
EXPORT int cuMemFree_v2(Pointer memory) { return --stub_allocated, free(reinterpret_cast<void*>(memory)), 0; }
EXPORT int cuMemPoolCreate(Opaque* pool, const void*) { return *pool = &stub_devices, 0; }
EXPORT int cuMemPoolSetAttribute(Opaque, int, void*) { return 0; }
EXPORT int cuMemAllocFromPoolAsync(Pointer* memory, size_t bytes, Opaque, Opaque) {
  return cuMemAlloc_v2(memory, bytes);
}
EXPORT int cuMemFreeAsync(Pointer memory, Opaque) { return cuMemFree_v2(memory); }
EXPORT int cuMemsetD8Async(Pointer to, unsigned char byte, size_t bytes, Opaque) {
  return memset(reinterpret_cast<void*>(to), byte, bytes), 0;
}
EXPORT int cuMemcpyAsync(Pointer to, Pointer from, size_t bytes, Opaque) {
  return memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes), 0;
}
EXPORT int cuStreamSynchronize(Opaque) { return ++stub_waits, 0; }
EXPORT int cuStreamQuery(Opaque) { return 0; }
EXPORT int cuStreamIsCapturing(Opaque, int* capturing) { return *capturing = stub_capturing, 0; }
// The rules of cuTensorMapEncodeTiled that the library must keep.
EXPORT int cuTensorMapEncodeTiled(void*, int, unsigned rank, void* address, const uint64_t* lengths,
                                  const uint64_t* strides, const uint32_t* box, const uint32_t*, int, int, int, int) {
  bool sound = rank == 5 && address != nullptr && reinterpret_cast<uint64_t>(address) % 16 == 0;
  for (int i = 0; i < 5; ++i)
    sound = sound && lengths[i] > 0 && lengths[i] <= uint64_t(1) << 32 && box[i] > 0 && box[i] <= 256;
  for (int i = 0; i < 4; ++i) sound = sound && strides[i] % 16 == 0 && strides[i] < uint64_t(1) << 40;
  if (!sound || stub_encode_error != 0) return 1;
  const int at = stub_maps++ % 3;
  memcpy(stub_lengths[at], lengths, sizeof(stub_lengths[at]));
  memcpy(stub_strides[at], strides, sizeof(stub_strides[at]));
  memcpy(stub_boxes[at], box, sizeof(stub_boxes[at]));
  return 0;
}
