// SPDX-License-Identifier: MIT
// Memory of an emulated device, for the runtimes over the executors: addresses that a host cannot follow, and copies.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace executor {

/// Memory whose addresses are reserved and inaccessible: a host that follows one faults.
struct Allocation {
  std::vector<uint8_t> bytes, defined;
  void* reserved = nullptr;  // where it begins; nullptr: freed
};
std::vector<Allocation>& allocations();  // slot k has the addresses from (k + 1) << 36 on

/// The allocation that holds `bytes` bytes at a device pointer, or nullptr.
Allocation* find(const void* pointer, size_t bytes, size_t& offset);

/// Some bytes, at least one. nullptr: there is no room. An address is used again only when all 2,046 were, the one freed longest ago first:
/// until then a freed one stays an error.
void* allocate(size_t bytes);
/// false: `pointer` is no allocation's beginning.
bool release(void* pointer);

enum class CopyKind : int { host_to_host, host_to_device, device_to_host, device_to_device, by_address };
/// false: there are no such bytes at either end.
bool copy(void* to, const void* from, size_t bytes, CopyKind kind);
bool set(void* to, int value, size_t bytes);

}  // namespace executor
