// SPDX-License-Identifier: MIT
// A problem as the dispatcher sees it.
#pragma once
#include <stdint.h>

namespace tilekiln {

// A device as DLPack names it: its type, and which of that type. The host is {1, 0}, whatever id its arrays have.
struct Device {
  int32_t type = 1, id = 0;
  bool operator==(const Device&) const = default;
};

constexpr int max_integers = 6, max_sizes = 6;  // axes.py knows them too

// The generated header of a family says which axis stands where: pack makes `codes`, <family>::wants and
// <family>::sizes are the indices.
struct Query {
  uint64_t codes = 0;                // every axis but the integers
  int64_t wants[max_integers] = {};  // by integer axis: what the problem has of it
  int64_t sizes[max_sizes] = {};     // by size that the family declares
  Device device;                     // where its arrays are
};

}  // namespace tilekiln
