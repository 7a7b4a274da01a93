// SPDX-License-Identifier: MIT
// Across the lanes of a register, for pipelines whose lanes run along a row.
#pragma once

#include "kernels/backends/cpu/generic/convert.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kRowAccumulators = 8;  // of a product along rows: half of the registers

// 4 registers -> lane i is the sum over the lanes of r[i]. Clobbers r.
TILEKILN_INLINE vf totals(vf* r) {
  transpose(r);
  return {(r[0].v + r[1].v) + (r[2].v + r[3].v)};
}

TILEKILN_INLINE float highest(vf a) {  // a NaN may be lost
  const float x = a.v[0] > a.v[1] ? a.v[0] : a.v[1], y = a.v[2] > a.v[3] ? a.v[2] : a.v[3];
  return x > y ? x : y;
}
TILEKILN_INLINE bool any_above(vf a, vf b) {  // a NaN is
  return !(a.v[0] <= b.v[0] && a.v[1] <= b.v[1] && a.v[2] <= b.v[2] && a.v[3] <= b.v[3]);
}
TILEKILN_INLINE lane_bits equal(vf a, vf b) {
  lane_bits bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= lane_bits((a.v[i] == b.v[i]) << i);
  return bits;
}
TILEKILN_INLINE float total(vf a) { return (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]); }

// 8 bf16: the even ones and the odd ones.
TILEKILN_INLINE void even_odd(const bf16* p, vf& even, vf& odd) {
  float first[kLanes], second[kLanes];  // g++ warns of vectors that are filled lane by lane
  for (int i = 0; i < kLanes; ++i) first[i] = core::widen(p[2 * i]), second[i] = core::widen(p[2 * i + 1]);
  even = load_unaligned(first), odd = load_unaligned(second);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
