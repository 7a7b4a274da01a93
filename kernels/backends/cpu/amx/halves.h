// SPDX-License-Identifier: MIT
// Numbers of fp16 as sums of two of bf16, exactly: one has 8 bits of the 11, the other the rest. The vectors are AVX-512's, which every
// processor with tiles has.
#pragma once

#include "kernels/backends/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Words of two fp16 as words of two bf16. Infinities and NaN are 0 in both parts.
struct SplitHalves {
  vf low, high;
  bool special;  // some of them were

  TILEKILN_INLINE explicit SplitHalves(vf words) {
    const __m512i halves = _mm512_castps_si512(words.v);
    const __m512i exponents = _mm512_set1_epi16(0x7c00);
    const __mmask32 finite = _mm512_cmpneq_epi16_mask(_mm512_and_si512(halves, exponents), exponents);
    special = finite != ~__mmask32(0);
    const __m512i given = _mm512_maskz_mov_epi16(finite, halves);
    const __m512 even = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(given));
    const __m512 odd = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(given, 16)));
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000));
    const __m512i even_high = _mm512_and_si512(_mm512_castps_si512(even), upper);
    const __m512i odd_high = _mm512_and_si512(_mm512_castps_si512(odd), upper);
    const __m512i even_low = _mm512_castps_si512(_mm512_sub_ps(even, _mm512_castsi512_ps(even_high)));
    const __m512i odd_low = _mm512_castps_si512(_mm512_sub_ps(odd, _mm512_castsi512_ps(odd_high)));
    high = {_mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(even_high, 16), odd_high))};
    low = {_mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(even_low, 16), odd_low))};
  }
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
