// SPDX-License-Identifier: MIT
// Parts of a window that lie inside x.
#pragma once
#include "kernels/backends/target.h"
#include "kernels/tensor/pooling/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using tensor::kSides;
using tensor::Pooling;

struct Inside { int first, last; };  // elements of a window
inline Inside inside(const Pooling& a, int side, long long at) {
  const long long left = a.length[side] - at, d = a.dilation[side];
  const long long first = at < 0 ? (d - 1 - at) / d : 0, last = left <= 0 ? 0 : (left + d - 1) / d;
  const int end = int(last < a.window[side] ? last : a.window[side]);
  return {int(first < end ? first : end), end};
}
// Elements of a window that lie inside x or its padding.
inline int counted(const Pooling& a, int side, long long at) {
  const long long last = (a.length[side] + a.padding[side] - at + a.dilation[side] - 1) / a.dilation[side];
  return int(last < a.window[side] ? last : a.window[side]);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
