// SPDX-License-Identifier: MIT
// Two vectors of a row in the order in which bf16 widens fastest: its even elements, then its odd ones.
#pragma once

#include "kernels/backends/cpu/avx2/horizontal.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Rounded to nearest even, as words of (even, odd).
TILEKILN_INLINE __m256i bf16_words(vf even, vf odd) {
  const auto rounded = [](__m256 a) __attribute__((always_inline)) {
    const __m256i u = _mm256_castps_si256(a), last = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc00000), nan);
  };
  return _mm256_blend_epi16(_mm256_srli_epi32(rounded(even.v), 16), rounded(odd.v), 0xaa);
}
TILEKILN_INLINE void narrow_even_odd(bf16* p, vf even, vf odd) {
  _mm256_storeu_si256((__m256i*)p, bf16_words(even, odd));
}
// Rounds vectors to what they are after having been stored.
TILEKILN_INLINE void round_even_odd(vf& even, vf& odd) {
  const __m256i x = bf16_words(even, odd);
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000))))};
}

TILEKILN_INLINE void even_odd(const float* p, vf& even, vf& odd) {
  const __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + kLanes);
  const auto in_order = [](__m256 x) __attribute__((always_inline)) {  // of the quarters 0 2 1 3
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
  };
  even = {in_order(_mm256_shuffle_ps(a, b, 0x88))};
  odd = {in_order(_mm256_shuffle_ps(a, b, 0xdd))};
}

// Bytes, rounded to nearest even; the numbers lie within int16.
TILEKILN_INLINE void narrow_even_odd(signed char* p, vf even, vf odd) {
  const __m256i e = _mm256_cvtps_epi32(even.v), o = _mm256_slli_epi32(_mm256_cvtps_epi32(odd.v), 16);
  const __m256i x = _mm256_blend_epi16(e, o, 0xaa);
  _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
}

// The larger of a number that is not negative and of |v|; NaN is the largest.
TILEKILN_INLINE vf max_magnitude(vf so_far, vf v) {
  const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(v.v), _mm256_set1_epi32(0x7fffffff));
  return {_mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(so_far.v), magnitude))};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
