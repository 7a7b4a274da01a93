// SPDX-License-Identifier: MIT
// Width of rows: whether kernels of devices may read and write them by vectors.
#pragma once
#include <stdint.h>

#include <initializer_list>

namespace tilekiln::norm {

// Rows of an array, `step` elements of `bytes` apart; null: not given.
struct ArrayRows {
  const void* data;
  long long step;
  int bytes;
};

// 16-byte accesses where all of them can be.
inline bool are_wide(long long rows, std::initializer_list<ArrayRows> arrays) {
  for (const ArrayRows& one : arrays) {
    if (one.data == nullptr) continue;
    const bool even = rows == 1 || one.step * one.bytes % 16 == 0;
    if (!even || reinterpret_cast<uintptr_t>(one.data) % 16 != 0) return false;
  }
  return true;
}

constexpr int bytes_of(int dtype) { return dtype == 0 ? 4 : 2; }

}  // namespace tilekiln::norm
