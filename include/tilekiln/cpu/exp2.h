// 2^x by a minimax polynomial of the fraction. Relative error: degree 3 7.5e-5 (below half a bf16 ulp), degree 5 7.5e-8.
#pragma once

#include "tilekiln/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

template <int Degree> TILEKILN_INLINE vf exp2_polynomial(vf f) {
  static_assert(Degree == 3 || Degree == 5, "There are coefficients for degree 3 and degree 5 only.");
  if constexpr (Degree == 3) {
    vf y = fma(broadcast(5.517166802e-02f), f, broadcast(2.426111221e-01f));
    y = fma(y, f, broadcast(6.932609857e-01f));
    return fma(y, f, broadcast(9.999280735e-01f));
  } else {
    vf y = fma(broadcast(1.327647187e-03f), f, broadcast(9.675541333e-03f));
    y = fma(y, f, broadcast(5.550713274e-02f));
    y = fma(y, f, broadcast(2.402211972e-01f));
    y = fma(y, f, broadcast(6.931469671e-01f));
    return fma(y, f, broadcast(1.000000072f));
  }
}

template <int Degree> TILEKILN_INLINE vf exp2(vf x) {
  const Split s = split(x);
  return power(exp2_polynomial<Degree>(s.fraction), s);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
