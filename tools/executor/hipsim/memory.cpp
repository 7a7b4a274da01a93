// SPDX-License-Identifier: MIT
// Allocations and copies.
#include "hipsim.h"

#include <cstdlib>
#include <map>

using namespace hipsim;

namespace {

// Memory of the host that a device copies from by itself, by its first byte.
std::map<char*, size_t>& pinned() {
  static auto* const all = new std::map<char*, size_t>;
  return *all;
}

int copy(void* to, const void* from, size_t bytes, int kind) {
  if (failed_before()) return launch_failure;
  const bool known = kind >= 0 && kind <= int(executor::CopyKind::by_address);
  return known && executor::copy(to, from, bytes, executor::CopyKind(kind)) ? success : invalid_value;
}

int set(void* to, int value, size_t bytes) {
  if (failed_before()) return launch_failure;
  return executor::set(to, value, bytes) ? success : invalid_value;
}

}  // namespace

HIP_API int hipMalloc(void** pointer, size_t bytes) {
  const std::lock_guard lock(gate());
  if (!pointer) return noted(invalid_value);
  *pointer = nullptr;
  if (failed_before()) return launch_failure;
  if (!bytes) return success;
  *pointer = executor::allocate(bytes);
  return *pointer ? success : noted(out_of_memory);
}

HIP_API int hipFree(void* pointer) {
  const std::lock_guard lock(gate());
  return !pointer || executor::release(pointer) ? success : noted(invalid_value);
}

HIP_API int hipMallocAsync(void** pointer, size_t bytes, void*) { return hipMalloc(pointer, bytes); }
HIP_API int hipFreeAsync(void* pointer, void*) { return hipFree(pointer); }

HIP_API int hipHostMalloc(void** memory, size_t bytes, unsigned) {
  const std::lock_guard lock(gate());
  if (!memory || !bytes) return noted(invalid_value);
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (!*memory) return noted(out_of_memory);
  pinned()[static_cast<char*>(*memory)] = bytes;
  return success;
}
HIP_API int hipHostGetFlags(unsigned* flags, void* memory) {
  const std::lock_guard lock(gate());
  auto found = pinned().upper_bound(static_cast<char*>(memory));
  if (!flags || found == pinned().begin()) return noted(invalid_value);
  --found;
  if (static_cast<char*>(memory) >= found->first + found->second) return noted(invalid_value);
  return *flags = 0, success;
}
HIP_API int hipHostFree(void* memory) {
  const std::lock_guard lock(gate());
  if (!memory) return success;
  if (!pinned().erase(static_cast<char*>(memory))) return noted(invalid_value);
  std::free(memory);
  return success;
}

HIP_API int hipMemcpy(void* to, const void* from, size_t bytes, int kind) {
  const std::lock_guard lock(gate());
  return noted(copy(to, from, bytes, kind));
}
HIP_API int hipMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void*) {
  return hipMemcpy(to, from, bytes, kind);
}
HIP_API int hipMemset(void* to, int value, size_t bytes) {
  const std::lock_guard lock(gate());
  return noted(set(to, value, bytes));
}
HIP_API int hipMemsetAsync(void* to, int value, size_t bytes, void*) { return hipMemset(to, value, bytes); }
