// SPDX-License-Identifier: MIT
// Across the lanes of a register, for pipelines whose lanes run along a row.
#pragma once

#include "kernels/backends/cpu/avx512/convert.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kRowAccumulators = 16;  // of a product along rows: half of the registers

TILEKILN_INLINE float highest(vf a) { return _mm512_reduce_max_ps(a.v); }  // a NaN may be lost
TILEKILN_INLINE bool any_above(vf a, vf b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_NLE_UQ) != 0; }  // a NaN is
TILEKILN_INLINE lane_bits equal(vf a, vf b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
TILEKILN_INLINE float total(vf a) { return _mm512_reduce_add_ps(a.v); }

// 16 registers -> lane i is the sum over the lanes of r[i]. Clobbers r.
TILEKILN_INLINE vf totals(vf* r) {
  TILEKILN_UNROLL(8) for (int i = 0; i < 8; ++i) {
    const __m512 a = r[2 * i].v, b = r[2 * i + 1].v;
    r[i].v = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  }
  TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(r[2 * i].v), b = _mm512_castps_pd(r[2 * i + 1].v);
    r[i].v = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto halves = [](__m512 a, __m512 b) __attribute__((always_inline)) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return {halves(halves(r[0].v, r[1].v), halves(r[2].v, r[3].v))};
}

// The first lanes in rows of Width: 4, 8 or one alone; `row` elements apart.
template <int Rows, int Width> TILEKILN_INLINE void store_rows(float* to, long long row, vf a) {
  if constexpr (Width == 1) {
    static_assert(Rows == 1);
    *to = _mm512_cvtss_f32(a.v);
  } else if constexpr (Width == 4) {
    _mm_storeu_ps(to, _mm512_castps512_ps128(a.v));
    if constexpr (Rows > 1) _mm_storeu_ps(to + row, _mm512_extractf32x4_ps(a.v, 1));
    if constexpr (Rows > 2) _mm_storeu_ps(to + 2 * row, _mm512_extractf32x4_ps(a.v, 2));
    if constexpr (Rows > 3) _mm_storeu_ps(to + 3 * row, _mm512_extractf32x4_ps(a.v, 3));
  } else {
    static_assert(Width == 8);
    _mm256_storeu_ps(to, _mm512_castps512_ps256(a.v));
    if constexpr (Rows > 1) _mm256_storeu_ps(to + row, _mm512_extractf32x8_ps(a.v, 1));
  }
}

// 32 bf16: the even ones and the odd ones. One operation each; widening them in order takes two.
TILEKILN_INLINE void even_odd(__m512i x, vf& even, vf& odd) {
  even = {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))};
  odd = {_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000))))};
}
TILEKILN_INLINE void even_odd(const bf16* p, vf& even, vf& odd) {
  __m512i x = _mm512_loadu_si512(p);
  asm("" : "+v"(x));  // g++ reads it once an operation otherwise: rows from L3 took up to 1.25 times as long
  even_odd(x, even, odd);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
