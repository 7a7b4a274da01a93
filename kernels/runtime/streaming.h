// SPDX-License-Identifier: MIT
// Calls whose arrays no cache keeps.
#pragma once
#include <cstdint>

namespace tilekiln {

// Results of calls that move as many bytes as this go around the caches, where the engine can: each line of a result is then
// written without being read first, and what is read stays in the cache. That of the machines measured here, 32 MB, holds no more.
constexpr int64_t kStreamingBytes = int64_t{32} << 20;

// Tells whether rows of `bytes`, `stride` bytes apart, are whole cache lines.
inline bool whole_lines(const void* data, int64_t stride, int64_t bytes) {
  return ((reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(stride) | static_cast<uint64_t>(bytes)) & 63) == 0;
}

}  // namespace tilekiln
