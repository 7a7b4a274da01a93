// SPDX-License-Identifier: MIT
// int32 arrays that are read on the host: lengths, starts, page numbers.
#pragma once
#include "kernels/attention/call.h"

namespace tilekiln::fmha {

inline int32_t entry(const Array& array, i64 i) {
  return *reinterpret_cast<const int32_t*>(array.data + i * array.stride[0] * static_cast<i64>(sizeof(int32_t)));
}

inline int32_t entry(const Array& array, i64 i, i64 j) {
  return *reinterpret_cast<const int32_t*>(array.data + (i * array.stride[0] + j * array.stride[1]) *
                                                            static_cast<i64>(sizeof(int32_t)));
}

// One dimension of `count` int32. `sum` is how count is made up, for the error.
[[nodiscard]] tilekiln_status check_index(const Array& array, i64 count, const char* sum);

// Checks an index array that kernels read, which may be absent: contiguous, too.
[[nodiscard]] tilekiln_status check_unread(const Array& array, i64 count, const char* sum);

// Cumulative, batch + 1 entries: starts at 0 or more, never decreases, ends at `limit` or before.
[[nodiscard]] tilekiln_status check_cumulative(const Array& array, i64 batch, i64 limit, const char* limit_name);

}  // namespace tilekiln::fmha
