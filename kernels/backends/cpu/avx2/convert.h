// SPDX-License-Identifier: MIT
// 8 storage elements <-> 8 fp32 lanes. Narrowing rounds to nearest even. No alignment is assumed.
#pragma once

#include "kernels/backends/cpu/avx2/vector.h"
#include "kernels/backends/numbers.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using core::bf16;
using core::bf8;
using core::fp16;
using core::fp8;

TILEKILN_INLINE vf widen(const float* p) { return load_unaligned(p); }
TILEKILN_INLINE vf widen(const fp16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
TILEKILN_INLINE vf widen(const bf16* p) {
  const __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(x, 16))};
}
// e4m3: the fields under an fp32 exponent, times 2^120. 0x7f is NaN.
TILEKILN_INLINE vf widen_fp8(__m128i bytes) {
  const __m256i x = _mm256_cvtepu8_epi32(bytes);
  const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
  const __m256 sign = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x80)), 24));
  const __m256 nan = _mm256_castsi256_ps(_mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f)));
  const __m256 f = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)), _mm256_set1_ps(0x1p120f));
  return {_mm256_or_ps(_mm256_or_ps(f, nan), sign)};
}
// e5m2 is the upper byte of fp16.
TILEKILN_INLINE vf widen(const bf8* p) {
  const __m128i x = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)p));
  return {_mm256_cvtph_ps(_mm_slli_epi16(x, 8))};
}
TILEKILN_INLINE vf widen(const fp8* p) { return widen_fp8(_mm_loadl_epi64((const __m128i*)p)); }

TILEKILN_INLINE void narrow(float* p, vf a) { store_unaligned(p, a); }
TILEKILN_INLINE void narrow(fp16* p, vf a) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
TILEKILN_INLINE void narrow(bf16* p, vf a) {
  const __m256i u = _mm256_castps_si256(a.v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  r = _mm256_srli_epi32(_mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc00000), nan), 16);
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
}

TILEKILN_INLINE void narrow(signed char* p, vf a) {  // saturated
  const __m256i x = _mm256_cvtps_epi32(a.v);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(halves, halves));
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
