// SPDX-License-Identifier: MIT
#include "allocations.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <new>

namespace executor {

namespace {

constexpr int kSlotShift = 36;
constexpr uint64_t kMost = 1ull << kSlotShift, kSlots = 0x7fe;  // below 2^47, where addresses of programs end

/// Copies between here and memory of the host that may not be there: false instead of a fault.
bool from_host(void* to, const void* host, size_t bytes) {
  const iovec local = {to, bytes}, remote = {const_cast<void*>(host), bytes};
  return !bytes || process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == ssize_t(bytes);
}
bool to_host(void* host, const void* from, size_t bytes) {
  const iovec local = {const_cast<void*>(from), bytes}, remote = {host, bytes};
  return !bytes || process_vm_writev(getpid(), &local, 1, &remote, 1, 0) == ssize_t(bytes);
}

/// Places in `allocations` of what was released, longest ago first: they are taken again only when there are no new ones, so that a
/// pointer to memory that is gone stays one for long.
std::deque<size_t>& released() {
  static std::deque<size_t> all;
  return all;
}

/// A place nothing lies in; kSlots where every one is taken.
size_t free_slot() {
  auto& all = allocations();
  if (all.size() < kSlots) {
    all.emplace_back();
    return all.size() - 1;
  }
  if (released().empty()) return kSlots;
  const size_t slot = released().front();
  released().pop_front();
  return slot;
}

}  // namespace

std::vector<Allocation>& allocations() {
  static std::vector<Allocation> all;
  return all;
}

Allocation* find(const void* pointer, size_t bytes, size_t& offset) {
  const uint64_t address = reinterpret_cast<uint64_t>(pointer), slot = address >> kSlotShift;
  offset = address & (kMost - 1);
  if (slot < 1 || slot > allocations().size()) return nullptr;
  Allocation& found = allocations()[slot - 1];
  const bool inside = offset <= found.bytes.size() && bytes <= found.bytes.size() - offset;
  return found.reserved && inside ? &found : nullptr;
}

void* allocate(size_t bytes) {
  if (bytes >= kMost) return nullptr;
  for (size_t slot; (slot = free_slot()) < kSlots;) {
    void* wanted = reinterpret_cast<void*>(uint64_t(slot + 1) << kSlotShift);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void* got = mmap(wanted, bytes, PROT_NONE, flags, -1, 0);
    if (got != wanted) {  // the program itself lies there
      if (got != MAP_FAILED) munmap(got, bytes);
      continue;
    }
    Allocation& made = allocations()[slot];
    try {
      made.bytes.resize(bytes);
      made.defined.assign(bytes, 0);
    } catch (const std::bad_alloc&) {
      munmap(got, bytes);
      made = {};
      released().push_back(slot);
      return nullptr;
    }
    return made.reserved = got;
  }
  return nullptr;
}

bool release(void* pointer) {
  size_t at;
  Allocation* found = find(pointer, 0, at);
  if (!found || at) return false;
  munmap(found->reserved, found->bytes.size());
  *found = {};
  released().push_back(size_t(found - allocations().data()));
  return true;
}

bool copy(void* to, const void* from, size_t bytes, CopyKind kind) {
  size_t at_to = 0, at_from = 0;
  Allocation *target = find(to, bytes, at_to), *source = find(from, bytes, at_from);
  if (kind == CopyKind::by_address)
    kind = target ? (source ? CopyKind::device_to_device : CopyKind::host_to_device)
                  : (source ? CopyKind::device_to_host : CopyKind::host_to_host);
  if (kind == CopyKind::device_to_device && target && source) {
    std::memmove(target->bytes.data() + at_to, source->bytes.data() + at_from, bytes);
    std::memmove(target->defined.data() + at_to, source->defined.data() + at_from, bytes);
    return true;
  }
  if (kind == CopyKind::host_to_device && target && from_host(target->bytes.data() + at_to, from, bytes)) {
    std::memset(target->defined.data() + at_to, 1, bytes);
    return true;
  }
  if (kind == CopyKind::device_to_host && source) return to_host(to, source->bytes.data() + at_from, bytes);
  if (kind == CopyKind::host_to_host) {
    std::vector<uint8_t> between(bytes);
    return from_host(between.data(), from, bytes) && to_host(to, between.data(), bytes);
  }
  return false;
}

bool set(void* to, int value, size_t bytes) {
  size_t at;
  Allocation* target = find(to, bytes, at);
  if (!target) return false;
  std::memset(target->bytes.data() + at, value, bytes);
  std::memset(target->defined.data() + at, 1, bytes);
  return true;
}

}  // namespace executor
