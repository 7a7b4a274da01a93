// SPDX-License-Identifier: MIT
// The operand formats of the micro-kernels. A word is 32 bits along the contraction: one fp32, or two bf16. A factor is a vf or a word.
#pragma once

#include "kernels/backends/cpu/bf16_arithmetic.h"
#include "kernels/backends/cpu/exp2.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

struct ComputeFp32 {
  static constexpr int kWord = 1;        // elements a word
  static constexpr int kExp2Degree = 5;  // of P
  static constexpr uint32_t kSigns = 0x80000000u;
  template <class Factor> static TILEKILN_INLINE vf multiply_add(vf sum, vf a, Factor b) { return fma(b, a, sum); }
  static TILEKILN_INLINE vf probability_word(vf p, vf) { return p; }
};

#if TILEKILN_PAIRS
struct ComputeBf16 {
  static constexpr int kWord = 2;
  static constexpr int kExp2Degree = 3;
  static constexpr uint32_t kSigns = 0x80008000u;
  template <class Factor> static TILEKILN_INLINE vf multiply_add(vf sum, vf a, Factor b) { return dot_pair(sum, a, b); }
  static TILEKILN_INLINE vf probability_word(vf p, vf next) { return pair(p, next); }
};

// A unit of bf16, by pairs or as fp32: the processor's question, of those that could have either.
#if defined(__AVX512BF16__)
template <auto by_pairs, auto as_fp32, class... Given> void either_unit(Given... given) {
  return tilekiln::widens_bf16() ? as_fp32(given...) : by_pairs(given...);
}
#else
template <auto by_pairs, auto, class... Given> void either_unit(Given... given) { return by_pairs(given...); }
#endif
#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
