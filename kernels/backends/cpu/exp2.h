// SPDX-License-Identifier: MIT
// 2^x by a minimax polynomial of the fraction, among those with 2^0 = 1: running sums are multiplied by such powers, block after block,
// and an error at 0 would add up. Relative error: degree 3 1.0e-4 (below half a bf16 ulp), degree 5 8.3e-8.
#pragma once

#include "kernels/backends/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Coefficients from the constant term up. An interval of width 1 needs the same degree wherever it lies; where it lies is the ISA's
// choice. Over [0, 1] it is 2 at 1 too, so that the error vanishes on both sides of 2^0.
template <int Degree, bool Centred> struct Exp2Coefficients;
template <> struct Exp2Coefficients<3, true> {
  static constexpr float k[] = {1.f, 6.932829022e-01f, 2.422109395e-01f, 5.500893667e-02f};
};
template <> struct Exp2Coefficients<3, false> {
  static constexpr float k[] = {1.f, 6.954243779e-01f, 2.263076007e-01f, 7.826802880e-02f};
};
template <> struct Exp2Coefficients<5, true> {
  static constexpr float k[] = {
      1.f, 6.931470633e-01f, 2.402223498e-01f, 5.550676212e-02f, 9.671960957e-03f, 1.327463891e-03f};
};
template <> struct Exp2Coefficients<5, false> {
  static constexpr float k[] = {
      1.f, 6.931519508e-01f, 2.401573211e-01f, 5.582337826e-02f, 8.986458182e-03f, 1.880902913e-03f};
};

template <int Degree> TILEKILN_INLINE vf exp2_polynomial(vf f) {
  using C = Exp2Coefficients<Degree, kFractionCentred>;
  vf y = broadcast(C::k[Degree]);
  TILEKILN_UNROLL(8) for (int i = Degree - 1; i >= 0; --i) y = fma(y, f, broadcast(C::k[i]));
  return y;
}

template <int Degree> TILEKILN_INLINE vf exp2(vf x) {
  const Split s = split(x);
  return power(exp2_polynomial<Degree>(s.fraction), s);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
