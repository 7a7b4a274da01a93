// SPDX-License-Identifier: MIT
// A row of 32 keys on its way to powers, as powers.h has them: numbers that are added, and bits of keys that are dropped.
#pragma once

#include "kernels/backends/cpu/amx/powers.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Numbers of the 32 keys of which `there` has bits; the others are 0 and not read.
TILEKILN_INLINE void widen_there(const bf16* p, uint32_t there, vf& first, vf& second) {
  const __m512i halves = _mm512_maskz_loadu_epi16(there, p);
  const auto widened = [](__m256i x) __attribute__((always_inline)) {
    return vf{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
  };
  first = widened(_mm512_castsi512_si256(halves)), second = widened(_mm512_extracti64x4_epi64(halves, 1));
}

// A bit for each lane that is not below the limit, or no number.
TILEKILN_INLINE unsigned not_below(vf a, vf b, float limit) {
  const __m512 most = _mm512_set1_ps(limit);
  return unsigned(_mm512_cmp_ps_mask(a.v, most, _CMP_NLT_UQ)) | unsigned(_mm512_cmp_ps_mask(b.v, most, _CMP_NLT_UQ));
}

// Words of 32 keys in the order of powers.
struct PowerOrder {
  alignas(64) uint16_t key[32] = {};
  constexpr PowerOrder() {
    for (int w = 0; w < 32; ++w) key[w] = uint16_t(w / 8 * 4 + w % 4 + w / 4 % 2 * 16);
  }
};
inline constexpr PowerOrder kPowerOrder;
TILEKILN_INLINE vh in_power_order(const uint16_t* words) {
  return {_mm512_permutexvar_epi16(_mm512_load_si512(kPowerOrder.key), _mm512_loadu_si512(words))};
}

// Powers of the keys whose words have that bit; the others are 0.
TILEKILN_INLINE vh kept(vh power, vh words, int bit) {
  return {_mm512_maskz_mov_epi16(_mm512_test_epi16_mask(words.v, _mm512_set1_epi16(short(1 << bit))), power.v)};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
