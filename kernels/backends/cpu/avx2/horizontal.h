// SPDX-License-Identifier: MIT
// Across the lanes of a register, for pipelines whose lanes run along a row.
#pragma once

#include "kernels/backends/cpu/avx2/convert.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kRowAccumulators = 8;  // of a product along rows: half of the registers

// 8 registers -> lane i is the sum over the lanes of r[i]. Clobbers r.
TILEKILN_INLINE vf totals(vf* r) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(r[0].v, r[1].v), _mm256_hadd_ps(r[2].v, r[3].v));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(r[4].v, r[5].v), _mm256_hadd_ps(r[6].v, r[7].v));
  return {_mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31))};
}

TILEKILN_INLINE float highest(vf a) {  // a NaN may be lost
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
TILEKILN_INLINE bool any_above(vf a, vf b) {  // a NaN is
  return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_NLE_UQ)) != 0;
}
TILEKILN_INLINE lane_bits equal(vf a, vf b) {
  return lane_bits(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)));
}
TILEKILN_INLINE float total(vf a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

// 16 bf16: the even ones and the odd ones. One operation each; widening them in order takes two.
TILEKILN_INLINE void even_odd(const bf16* p, vf& even, vf& odd) {
  const __m256i x = _mm256_loadu_si256((const __m256i*)p);
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000))))};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
