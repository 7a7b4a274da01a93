// SPDX-License-Identifier: MIT
// Allocations, copies and tensor maps.
#include <cstdlib>
#include <map>

#include "allocations.h"
#include "cudasim.h"
#include "executor.h"

using namespace cudasim;

namespace {

std::map<char*, size_t>& pinned() {
  static std::map<char*, size_t> all;
  return all;
}

}  // namespace

CUDA_API int cuMemAlloc_v2(Pointer* memory, size_t bytes) {
  const std::lock_guard lock(gate());
  if (!memory || !bytes) return invalid_value;
  if (failed_before()) return launch_failed;
  *memory = reinterpret_cast<Pointer>(executor::allocate(bytes));
  return *memory ? success : out_of_memory;
}
CUDA_API int cuMemFree_v2(Pointer memory) {
  const std::lock_guard lock(gate());
  return !memory || executor::release(reinterpret_cast<void*>(memory)) ? success : invalid_value;
}
CUDA_API int cuMemPoolCreate(void** pool, const void* properties) {
  if (!pool || !properties) return invalid_value;
  static char the_pool;
  *pool = &the_pool;
  return success;
}
CUDA_API int cuMemPoolSetAttribute(void* pool, int, void* value) { return pool && value ? success : invalid_value; }
CUDA_API int cuMemAllocFromPoolAsync(Pointer* memory, size_t bytes, void* pool, void*) {
  return pool ? cuMemAlloc_v2(memory, bytes) : invalid_value;
}
CUDA_API int cuMemFreeAsync(Pointer memory, void*) { return cuMemFree_v2(memory); }

CUDA_API int cuMemcpyAsync(Pointer to, Pointer from, size_t bytes, void*) {
  const std::lock_guard lock(gate());
  if (failed_before()) return launch_failed;
  return executor::copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes,
                        executor::CopyKind::by_address)
             ? success
             : invalid_value;
}
CUDA_API int cuMemcpy(Pointer to, Pointer from, size_t bytes) { return cuMemcpyAsync(to, from, bytes, nullptr); }
CUDA_API int cuMemcpyHtoD_v2(Pointer to, const void* from, size_t bytes) {
  return cuMemcpyAsync(to, reinterpret_cast<Pointer>(from), bytes, nullptr);
}
CUDA_API int cuMemcpyDtoH_v2(void* to, Pointer from, size_t bytes) {
  return cuMemcpyAsync(reinterpret_cast<Pointer>(to), from, bytes, nullptr);
}
CUDA_API int cuMemsetD8Async(Pointer to, unsigned char byte, size_t bytes, void*) {
  const std::lock_guard lock(gate());
  if (failed_before()) return launch_failed;
  return executor::set(reinterpret_cast<void*>(to), byte, bytes) ? success : invalid_value;
}

CUDA_API int cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  const std::lock_guard lock(gate());
  if (!memory || !bytes) return invalid_value;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*memory) return out_of_memory;
  pinned()[static_cast<char*>(*memory)] = bytes;
  return success;
}
CUDA_API int cuMemHostGetFlags(unsigned* flags, void* memory) {
  const std::lock_guard lock(gate());
  auto found = pinned().upper_bound(static_cast<char*>(memory));
  if (!flags || found == pinned().begin()) return invalid_value;
  --found;
  if (static_cast<char*>(memory) >= found->first + found->second) return invalid_value;
  return *flags = 0, success;
}
CUDA_API int cuMemFreeHost(void* memory) {
  const std::lock_guard lock(gate());
  if (!pinned().erase(static_cast<char*>(memory))) return invalid_value;
  std::free(memory);
  return success;
}

CUDA_API int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* address, const uint64_t* lengths,
                                    const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                                    int interleave, int swizzle, int promotion, int fill) {
  return ptx_tensor_map(map, type, rank, reinterpret_cast<uint64_t>(address), lengths, strides, box, element_strides,
                        interleave, swizzle, promotion, fill)
             ? invalid_value
             : success;
}
