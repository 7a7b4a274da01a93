// SPDX-License-Identifier: MIT
// Across the lanes of a register, for pipelines whose lanes run along a row.
#pragma once

#include "kernels/backends/cpu/neon/convert.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kRowAccumulators = 16;  // of a product along rows: half of the registers

// 4 registers -> lane i is the sum over the lanes of r[i]. Clobbers r.
TILEKILN_INLINE vf totals(vf* r) { return {vpaddq_f32(vpaddq_f32(r[0].v, r[1].v), vpaddq_f32(r[2].v, r[3].v))}; }

TILEKILN_INLINE float highest(vf a) { return vmaxvq_f32(a.v); }
TILEKILN_INLINE bool any_above(vf a, vf b) { return vminvq_u32(vcleq_f32(a.v, b.v)) == 0; }  // a NaN is
TILEKILN_INLINE lane_bits equal(vf a, vf b) {
  return lane_bits(vaddvq_u32(vandq_u32(vceqq_f32(a.v, b.v), uint32x4_t{1, 2, 4, 8})));
}
TILEKILN_INLINE float total(vf a) { return vaddvq_f32(a.v); }

// 8 bf16: the even ones and the odd ones. One operation each; widening them in order takes two loads.
TILEKILN_INLINE void even_odd(uint16x8_t halves, vf& even, vf& odd) {
  const uint32x4_t x = vreinterpretq_u32_u16(halves);
  even = {vreinterpretq_f32_u32(vshlq_n_u32(x, 16))};
  odd = {vreinterpretq_f32_u32(vandq_u32(x, vdupq_n_u32(0xffff0000)))};
}
TILEKILN_INLINE void even_odd(const bf16* p, vf& even, vf& odd) { even_odd(vld1q_u16((const uint16_t*)p), even, odd); }

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
