// SPDX-License-Identifier: MIT
// 16 storage elements <-> 16 fp32 lanes. Narrowing rounds to nearest even. No alignment is assumed.
#pragma once

#include "kernels/backends/cpu/avx512/vector.h"
#include "kernels/backends/numbers.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using core::bf16;
using core::bf8;
using core::fp16;
using core::fp8;

TILEKILN_INLINE vf widen(const float* p) { return load_unaligned(p); }
TILEKILN_INLINE vf widen(const fp16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
TILEKILN_INLINE vf widen(const bf16* p) {
  const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))};
}
// e4m3: the fields under an fp32 exponent, times 2^120. 0x7f is NaN.
TILEKILN_INLINE vf widen_fp8(__m128i bytes) {
  const __m512i x = _mm512_cvtepu8_epi32(bytes);
  const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi32(0x7f));
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x80)), 24);
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
  const __m512 f = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)), _mm512_set1_ps(0x1p120f));
  const __m512i y = _mm512_mask_mov_epi32(_mm512_castps_si512(f), nan, _mm512_set1_epi32(0x7fc00000));
  return {_mm512_castsi512_ps(_mm512_or_si512(y, sign))};
}
// e5m2 is the upper byte of fp16.
TILEKILN_INLINE vf widen(const bf8* p) {
  const __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p));
  return {_mm512_cvtph_ps(_mm256_slli_epi16(x, 8))};
}
TILEKILN_INLINE vf widen(const fp8* p) { return widen_fp8(_mm_loadu_si128((const __m128i*)p)); }

TILEKILN_INLINE void narrow(float* p, vf a) { store_unaligned(p, a); }
TILEKILN_INLINE void narrow(fp16* p, vf a) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
TILEKILN_INLINE void narrow(bf16* p, vf a) {
#ifdef __AVX512BF16__
  const __m256i r = (__m256i)_mm512_cvtneps_pbh(a.v);
#else
  const __m512i u = _mm512_castps_si512(a.v), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
  const __m256i r = _mm512_cvtepi32_epi16(_mm512_srli_epi32(quiet, 16));
#endif
  _mm256_storeu_si256((__m256i*)p, r);
}

TILEKILN_INLINE void narrow(signed char* p, vf a) {  // saturated
  _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
