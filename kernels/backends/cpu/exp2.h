// 2^x by a minimax polynomial of the fraction. Relative error: degree 3 7.5e-5 (below half a bf16 ulp), degree 5 7.5e-8.
#pragma once

#include "kernels/backends/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// From the constant term up. An interval of width 1 needs the same degree wherever it lies; where it lies is the ISA's choice.
template <int Degree, bool Centred> struct Exp2Coefficients;
template <> struct Exp2Coefficients<3, true> {
  static constexpr float k[] = {9.999280735e-01f, 6.932609857e-01f, 2.426111221e-01f, 5.517166802e-02f};
};
template <> struct Exp2Coefficients<3, false> {
  static constexpr float k[] = {9.999251962e-01f, 6.958336234e-01f, 2.260672599e-01f, 7.802427560e-02f};
};
template <> struct Exp2Coefficients<5, true> {
  static constexpr float k[] = {1.000000072e+00f, 6.931469671e-01f, 2.402211972e-01f,
                                5.550713274e-02f, 9.675541333e-03f, 1.327647187e-03f};
};
template <> struct Exp2Coefficients<5, false> {
  static constexpr float k[] = {9.999999404e-01f, 6.931530237e-01f, 2.401536256e-01f,
                                5.582631379e-02f, 8.989344351e-03f, 1.877575065e-03f};
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
