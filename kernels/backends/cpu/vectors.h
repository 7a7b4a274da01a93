// SPDX-License-Identifier: MIT
// A row as vectors, for pipelines whose lanes run along it.
#pragma once

#include "kernels/backends/cpu/load.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// f(column, which of four accumulators, how many lanes exist) for all vectors of a row. The order is the row's alone.
template <class F> TILEKILN_INLINE void vectors(int columns, F&& f) {
  int j = 0;
  for (; j <= columns - 4 * kLanes; j += 4 * kLanes) {
    TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) f(j + i * kLanes, i, kLanes);
  }
  for (; j < columns; j += kLanes) f(j, 0, columns - j);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
