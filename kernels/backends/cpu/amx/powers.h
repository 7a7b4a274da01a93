// SPDX-License-Identifier: MIT
// Powers of 2 as bf16, 32 at a time, for tiles whose rows are queries: what lies beside tile products must be few instructions.
// The vectors are AVX-512's, which every processor with tiles has, with byte permutations (VBMI).
#pragma once

#include "kernels/backends/cpu/exp2.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The keys 0 to 31 of two vectors stand in a word order of their own: runs of four of the first and of the second in turn, as
// saturating packs leave them. Row r of V's pairs holds the keys power_key(r) and the next.
constexpr int power_key(int row) { return row / 4 * 4 + row % 2 * 2 + row / 2 % 2 * 16; }

TILEKILN_INLINE vh higher(vh a, vh b) { return {_mm512_max_epu16(a.v, b.v)}; }  // as unsigned numbers
TILEKILN_INLINE bool any_higher(vh a, int limit) {
  return _mm512_cmpgt_epu16_mask(a.v, _mm512_set1_epi16(short(limit))) != 0;
}
TILEKILN_INLINE vh magnitudes(vh a) { return {_mm512_and_si512(a.v, _mm512_set1_epi16(0x7fff))}; }
// The largest of 32 magnitudes, in bits: infinity and then NaN are above all numbers.
inline uint16_t largest(vh a) {
  const __m512i high = _mm512_srli_epi32(a.v, 16), low = _mm512_and_si512(a.v, _mm512_set1_epi32(0xffff));
  return uint16_t(_mm512_reduce_max_epu32(_mm512_max_epu32(high, low)));
}
inline float number(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float x;
  __builtin_memcpy(&x, &wide, sizeof x);
  return x;
}
TILEKILN_INLINE vh negated(vh a, uint16_t signs) { return {_mm512_xor_si512(a.v, _mm512_set1_epi16(short(signs)))}; }

// 2^(factor s + base) of the keys' scores s. They are bits of bf16, that is fixed point: an exponent, and a mantissa that would make
// the power linear between powers of 2; a table of 64 corrections takes off what is too much. The error is at most 7.3e-3, where
// rounding to bf16 alone has 3.9e-3.
// Below 2^-127, and of -inf, the power is 0.
struct PowerTable {
  // 128 (1 + x - 2^x) in the middle of each interval of x, rounded.
  alignas(64) unsigned char bytes[64] = {0,  1,  1,  2,  2,  3,  4,  4,  5,  5,  5,  6,  6,  7,  7,  8,   //
                                         8,  8,  9,  9,  9,  9,  10, 10, 10, 10, 10, 11, 11, 11, 11, 11,  //
                                         11, 11, 11, 11, 11, 11, 11, 11, 11, 10, 10, 10, 10, 10, 9,  9,   //
                                         9,  8,  8,  8,  7,  7,  6,  6,  5,  5,  4,  3,  3,  2,  1,  1};
};
inline constexpr PowerTable kPowerTable;

class FixedPowers {
 public:
  FixedPowers() : table_{_mm512_load_si512(kPowerTable.bytes)} {}
  // Factor and base of logits in log2 units: c of the scores, and the shift that is subtracted.
  static float factor(float c) { return 128 * c; }
  static float base(float shift) { return 127 * 128 - 128 * shift; }

  TILEKILN_INLINE vh operator()(vf first, vf second, vf factor, vf base, vf& sum) const {
    const __m512i low = _mm512_cvtps_epi32(fma(first, factor, base).v),
                  high = _mm512_cvtps_epi32(fma(second, factor, base).v);
    const __m512i bits = _mm512_packus_epi32(low, high);
    const __m512i excess = _mm512_maskz_permutexvar_epi8(0x5555555555555555, _mm512_srli_epi16(bits, 1), table_);
    const vh power = {_mm512_sub_epi16(bits, excess)};
    sum = dot_pair(sum, words(power), pairs_of_ones());
    return power;
  }

 private:
  __m512i table_;
};

// Powers by the polynomial that other engines take, summed before rounding: what a log-sum-exp is made of.
class RoundedPowers {
 public:
  static float factor(float c) { return c; }
  static float base(float shift) { return -shift; }

  TILEKILN_INLINE vh operator()(vf first, vf second, vf factor, vf base, vf& sum) const {
    const vf low = exp2<3>(fma(first, factor, base)), high = exp2<3>(fma(second, factor, base));
    sum = add(sum, add(low, high));
    const __m512i in_turn = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    return {_mm512_permutexvar_epi64(in_turn, both(low, high).v)};
  }
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
