// SPDX-License-Identifier: MIT
// The backends of this library's targets, and what people call their devices.
#include <stdio.h>

#include "kernels/runtime/backend.h"

namespace tilekiln {
namespace {

// The name of a DLPack device type; null for those that no target or framework here has.
const char* type_name(int32_t type) {
  switch (type) {
    case 2:
    case 3:
    case 13: return "cuda";
    case 7: return "vulkan";
    case 8: return "metal";
    case 10:
    case 11: return "rocm";
    case 14: return "oneapi";
    case 15: return "webgpu";
    default: return nullptr;
  }
}

const Backend& backend_at(uint32_t target) {
  const Backend* const backend = table.targets[target].backend;
  return backend == nullptr ? cpu_backend : *backend;
}

}  // namespace

const Backend* backend_of(int32_t device_type) {
  if (device_type == cpu_backend.device_type) return &cpu_backend;
  for (uint32_t i = 0; i < table.target_count; ++i) {
    if (backend_at(i).device_type == device_type) return &backend_at(i);
  }
  return nullptr;
}

const char* device_text(Device device, char* buffer, size_t capacity) {
  const Backend* const backend = backend_of(device.type);
  const char* const name = backend != nullptr ? backend->name : type_name(device.type);
  if (device.type == cpu_backend.device_type) {
    snprintf(buffer, capacity, "%s", cpu_backend.name);
  } else if (name != nullptr) {
    snprintf(buffer, capacity, "%s:%d", name, device.id);
  } else {
    snprintf(buffer, capacity, "of DLPack type %d", device.type);
  }
  return buffer;
}

const char* known_devices(bool numbers, char* buffer, size_t capacity) {
  const char* separator = "";
  const Backend* before = nullptr;
  int length = 0;
  buffer[0] = 0;
  for (uint32_t i = 0; i < table.target_count && length < static_cast<int>(capacity); ++i) {
    const Backend& backend = backend_at(i);
    if (&backend == before) continue;  // targets of one backend follow each other
    before = &backend;
    const auto rest = capacity - static_cast<size_t>(length);
    length += numbers ? snprintf(buffer + length, rest, "%s%s (%d)", separator, backend.name, backend.device_type)
                      : snprintf(buffer + length, rest, "%s%s", separator, backend.name);
    separator = " or ";
  }
  return buffer;
}

bool has_name(Device device) { return backend_of(device.type) != nullptr || type_name(device.type) != nullptr; }

}  // namespace tilekiln
