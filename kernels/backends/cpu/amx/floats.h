// SPDX-License-Identifier: MIT
// Numbers of fp32 as sums of two or three of bf16: the number rounded, and what is left, rounded. Two have 16 bits of the 24, three all,
// down to 2^-110: bf16's products take subnormal numbers as 0. The vectors are AVX-512's, which every processor with tiles has.
#pragma once

#include "kernels/backends/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Least number that rounds to an infinity of bf16.
constexpr float kLeastWithoutParts = 0x1.ffp127f;

// Words of bf16 of the even and the odd numbers of a row, the largest part first. Numbers without parts, infinities and NaN are 0 in all.
template <int kParts> struct SplitFloats {
  vf part[kParts];
  bool special;  // some of them were

  TILEKILN_INLINE SplitFloats(vf even, vf odd) {
    const __m512 least = _mm512_set1_ps(kLeastWithoutParts);
    const __mmask16 has_even = _mm512_cmp_ps_mask(_mm512_abs_ps(even.v), least, _CMP_LT_OQ),
                    has_odd = _mm512_cmp_ps_mask(_mm512_abs_ps(odd.v), least, _CMP_LT_OQ);
    special = (has_even & has_odd) != 0xffff;
    even.v = _mm512_maskz_mov_ps(has_even, even.v), odd.v = _mm512_maskz_mov_ps(has_odd, odd.v);
    TILEKILN_UNROLL(3) for (int i = 0; i < kParts; ++i) {
      const __m512i rounded = bf16_words(even, odd);
      part[i] = {_mm512_castsi512_ps(rounded)};
      if (i + 1 == kParts) break;
      vf a, b;
      even_odd(rounded, a, b);
      even = sub(even, a), odd = sub(odd, b);
    }
  }
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
