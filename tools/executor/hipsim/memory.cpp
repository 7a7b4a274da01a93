// Allocations and copies.
#include "hipsim.h"

using namespace hipsim;

namespace {

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
