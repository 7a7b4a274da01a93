// Allocations and copies.
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "hipsim.h"

namespace hipsim {

namespace {

constexpr int kSlotShift = 36;
constexpr uint64_t kMost = 1ull << kSlotShift, kSlots = 0x7fe;  // below 2^47, where addresses of programs end

/// The allocation that holds `bytes` bytes at a device pointer, or nullptr.
Allocation* find(const void* pointer, size_t bytes, size_t& offset) {
  const uint64_t address = reinterpret_cast<uint64_t>(pointer), slot = address >> kSlotShift;
  offset = address & (kMost - 1);
  if (slot < 1 || slot > allocations().size()) return nullptr;
  Allocation& found = allocations()[slot - 1];
  const bool inside = offset <= found.bytes.size() && bytes <= found.bytes.size() - offset;
  return found.reserved && inside ? &found : nullptr;
}

/// Copies between here and memory of the host that may not be there: false instead of a fault.
bool from_host(void* to, const void* host, size_t bytes) {
  const iovec local = {to, bytes}, remote = {const_cast<void*>(host), bytes};
  return !bytes || process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == ssize_t(bytes);
}
bool to_host(void* host, const void* from, size_t bytes) {
  const iovec local = {const_cast<void*>(from), bytes}, remote = {host, bytes};
  return !bytes || process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == ssize_t(bytes);
}

int copy(void* to, const void* from, size_t bytes, int kind) {
  enum { host_to_host, host_to_device, device_to_host, device_to_device, by_address };
  if (failed_before()) return launch_failure;
  size_t at_to = 0, at_from = 0;
  Allocation *target = find(to, bytes, at_to), *source = find(from, bytes, at_from);
  if (kind == by_address) kind = (target ? host_to_device : host_to_host) + (source ? device_to_host : 0);
  if (kind == device_to_device && target && source) {
    std::memmove(target->bytes.data() + at_to, source->bytes.data() + at_from, bytes);
    std::memmove(target->defined.data() + at_to, source->defined.data() + at_from, bytes);
    return success;
  }
  if (kind == host_to_device && target && from_host(target->bytes.data() + at_to, from, bytes)) {
    std::memset(target->defined.data() + at_to, 1, bytes);
    return success;
  }
  if (kind == device_to_host && source && to_host(to, source->bytes.data() + at_from, bytes)) return success;
  if (kind == host_to_host) {
    std::vector<uint8_t> between(bytes);
    if (from_host(between.data(), from, bytes) && to_host(to, between.data(), bytes)) return success;
  }
  return invalid_value;
}

int set(void* to, int value, size_t bytes) {
  if (failed_before()) return launch_failure;
  size_t at;
  Allocation* target = find(to, bytes, at);
  if (!target) return invalid_value;
  std::memset(target->bytes.data() + at, value, bytes);
  std::memset(target->defined.data() + at, 1, bytes);
  return success;
}

}  // namespace

std::vector<Allocation>& allocations() {
  static std::vector<Allocation> all;
  return all;
}

}  // namespace hipsim

using namespace hipsim;

HIP_API int hipMalloc(void** pointer, size_t bytes) {
  const std::lock_guard lock(gate());
  if (!pointer) return noted(invalid_value);
  *pointer = nullptr;
  if (failed_before()) return launch_failure;
  if (!bytes) return success;
  auto& all = allocations();
  while (bytes < kMost && all.size() < kSlots) {  // an address is never used twice: a freed one stays an error
    all.emplace_back();
    void* wanted = reinterpret_cast<void*>(uint64_t(all.size()) << kSlotShift);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void* got = mmap(wanted, bytes, PROT_NONE, flags, -1, 0);
    if (got != wanted) {  // the program itself lies there
      if (got != MAP_FAILED) munmap(got, bytes);
      continue;
    }
    try {
      all.back().bytes.resize(bytes);
      all.back().defined.assign(bytes, 0);
    } catch (const std::bad_alloc&) {
      munmap(got, bytes);
      break;
    }
    all.back().reserved = *pointer = got;
    return success;
  }
  return noted(out_of_memory);
}

HIP_API int hipFree(void* pointer) {
  const std::lock_guard lock(gate());
  size_t at;
  if (!pointer) return success;
  Allocation* found = find(pointer, 0, at);
  if (!found || at) return noted(invalid_value);
  munmap(found->reserved, found->bytes.size());
  *found = {};
  return success;
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
