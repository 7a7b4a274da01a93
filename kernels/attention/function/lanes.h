// SPDX-License-Identifier: MIT
// A function over pairs of queries and keys in lanes along queries: the elements that it reads, and what its mask shows of a block.
#pragma once

#include "kernels/attention/cpu/score.h"
#include "kernels/attention/function/bounds.h"
#include "kernels/attention/function/engine.h"
#include "kernels/backends/cpu/lanes.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using scalars::bound, scalars::bound_lanes, scalars::Bounds, scalars::element, scalars::element_bounds, scalars::single,
    scalars::Truth, scalars::within;

TILEKILN_INLINE lane_bits bits_of(vint truth) {
  const vf one = broadcast(1.f);
  return equal(same_bits<vf>(truth & same_bits<vint>(one)), one);
}

// Keys of a block that a mask shows, by the lanes of every key and vector: those past the last row or key count for nothing.
inline Sees sees_of(const lane_bits* seen, int rows, int keys) {
  bool any = false, all = true;
  for (int j = 0; j * kLanes < rows; ++j) {
    const int exist = rows - j * kLanes < kLanes ? rows - j * kLanes : kLanes;
    const lane_bits whole = lane_bits((1u << exist) - 1);
    for (int key = 0; key < keys; ++key) {
      const lane_bits bits = seen[j * kTileK + key] & whole;
      any |= bits != 0;
      all &= bits == whole;
    }
  }
  return !any ? Sees::none : all ? Sees::all : Sees::some;
}

TILEKILN_INLINE int at_lane(int index, int) { return index; }
TILEKILN_INLINE int at_lane(vint index, int lane) { return index[lane]; }

template <class T, class... Index> TILEKILN_INLINE auto elements(const fmha::FunctionTensor& t, Index... index) {
  T some[kLanes];
  for (int i = 0; i < kLanes; ++i) some[i] = element<T>(t, at_lane(index, i)...);
  T __attribute__((vector_size(sizeof(some)))) all;
  __builtin_memcpy(&all, some, sizeof all);
  return all;
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
