// SPDX-License-Identifier: MIT
// Two vectors of a row in the order in which bf16 widens fastest: its even elements, then its odd ones.
#pragma once

#include "kernels/backends/cpu/avx512/horizontal.h"
#include "kernels/backends/cpu/avx512/pairs.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Rounded to nearest even, as words of (even, odd).
TILEKILN_INLINE __m512i bf16_words(vf even, vf odd) {
#if TILEKILN_PAIRS
  return interleaved(both(even, odd)).v;
#else
  const auto rounded = [](__m512 a) __attribute__((always_inline)) {
    const __m512i u = _mm512_castps_si512(a), last = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), _mm512_set1_epi32(0x7fc00000));
  };
  return _mm512_mask_mov_epi16(_mm512_srli_epi32(rounded(even.v), 16), 0xaaaaaaaa, rounded(odd.v));
#endif
}
TILEKILN_INLINE void narrow_even_odd(bf16* p, vf even, vf odd) { _mm512_storeu_si512(p, bf16_words(even, odd)); }
#if TILEKILN_PAIRS
// The first `left` of 32.
TILEKILN_INLINE void store_halves(bf16* p, vh a, int left) {
  if (left >= 32) return _mm512_storeu_si512(p, a.v);
  _mm512_mask_storeu_epi16(p, (1u << left) - 1, a.v);
}
// All of them, around the caches, to the beginning of a cache line.
TILEKILN_INLINE void stream_halves(bf16* p, vh a) { _mm512_stream_si512((__m512i*)p, a.v); }
#endif
TILEKILN_INLINE void stream_words(float* p, vf a) { _mm512_stream_ps(p, a.v); }
// Rounds vectors to what they are after having been stored.
TILEKILN_INLINE void round_even_odd(vf& even, vf& odd) { even_odd(bf16_words(even, odd), even, odd); }

TILEKILN_INLINE void even_odd(const float* p, vf& even, vf& odd) {
  const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + kLanes);
  even = {_mm512_permutex2var_ps(a, index, b)};
  odd = {_mm512_permutex2var_ps(a, _mm512_add_epi32(index, _mm512_set1_epi32(1)), b)};
}

// Bytes, rounded to nearest even; the numbers lie within int16.
TILEKILN_INLINE void narrow_even_odd(signed char* p, vf even, vf odd) {
  const __m512i e = _mm512_cvtps_epi32(even.v), o = _mm512_slli_epi32(_mm512_cvtps_epi32(odd.v), 16);
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi16_epi8(_mm512_mask_mov_epi16(e, 0xaaaaaaaa, o)));
}

// The larger of a number that is not negative and of |v|; NaN is the largest.
TILEKILN_INLINE vf max_magnitude(vf so_far, vf v) {
  const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(v.v), _mm512_set1_epi32(0x7fffffff));
  return {_mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(so_far.v), magnitude))};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
