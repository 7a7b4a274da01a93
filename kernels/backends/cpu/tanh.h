// SPDX-License-Identifier: MIT
// tanh x = x N(x^2) / D(x^2) up to kMost, where that is 1, and constant beyond: 1 - 2 / (e^2x + 1) cancels near 0. The coefficients are a
// minimax fit: with rounding the error is at most 5 u of x, and 9 u of tanh x, u = 2^-24.
#pragma once

#include "kernels/backends/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// times tanh x. A NaN stays.
struct Tanh {
  static constexpr float kMost = 7.75f;
  static constexpr float kNumerator[] = {1.f, 1.295299232e-01f, 2.979870420e-03f, 1.172680732e-05f};
  static constexpr float kDenominator[] = {1.f, 4.628627002e-01f, 2.393498272e-02f, 2.426707651e-04f, 2.551741147e-07f};
  vf numerator[4];
  explicit Tanh(float times = 1) {
    for (int i = 0; i < 4; ++i) numerator[i] = broadcast(kNumerator[i] * times);
  }
  TILEKILN_INLINE vf operator()(vf x) const {
    const vf u = max(broadcast(-kMost), min(broadcast(kMost), x)), w = mul(u, u);
    vf n = numerator[3], d = broadcast(kDenominator[4]);
    TILEKILN_UNROLL(4) for (int i = 2; i >= 0; --i) n = fma(n, w, numerator[i]);
    TILEKILN_UNROLL(4) for (int i = 3; i >= 0; --i) d = fma(d, w, broadcast(kDenominator[i]));
    return mul(mul(u, n), reciprocal(d));
  }
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
