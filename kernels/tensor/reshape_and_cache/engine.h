// SPDX-License-Identifier: MIT
// The border between the host side and the engines of reshape_and_cache: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::tensor {

// One side of a write, keys or values: strides in elements, of tokens, pages, places and heads; a head is contiguous.
struct CacheSide {
  const void* from;
  void* to;
  const float* scale;  // null: 1
  long long from_token, from_head, page, place, head;
  int columns;
};

struct CacheWrite {
  static constexpr bool launches_kernels = true;
  CacheSide keys, values;
  const void* slots;
  long long tokens, pages, page_size, slot_step;
  int heads, slot_bytes;  // 4 or 8
  int dtype, cache;       // by value of the axes
};

// rows[dtype] writes the tokens [first, last).
struct CacheWriteEngine { void (*rows[3])(const CacheWrite&, long long first, long long last); };

}  // namespace tilekiln::tensor
