// SPDX-License-Identifier: MIT
// The Gaussian error linear unit (https://arxiv.org/abs/1606.08415), exact and by its tanh, and what gradients need of them.
#pragma once

#include "kernels/backends/cpu/sigmoid.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// exp(-z^2). z >= 0 or NaN; 0 from 9.04 on: numbers that are almost 0 are subnormal, and took gelu of large sums twice the time.
TILEKILN_INLINE vf gauss(vf z) {
  const vf least = broadcast(-118.f);
  return sub(exp2<5>(max(least, mul(mul(z, z), broadcast(-1.44269504088896f)))), exp2<5>(least));
}
// 1 - erf(z) by Abramowitz and Stegun 7.1.26, absolute error 1.5e-7, of z and gauss(z). z >= 0 or NaN.
TILEKILN_INLINE vf erfc_of_positive(vf z, vf e) {
  const vf t = reciprocal(fma(broadcast(0.3275911f), z, broadcast(1.f)));
  vf y = broadcast(1.061405429f);
  y = fma(y, t, broadcast(-1.453152027f));
  y = fma(y, t, broadcast(1.421413741f));
  y = fma(y, t, broadcast(-0.284496736f));
  y = fma(y, t, broadcast(0.254829592f));
  return mul(mul(y, t), e);
}
// x / 2 (1 + tanh y) = x sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3)
TILEKILN_INLINE vf gelu_tanh(vf x) {
  const vf cube = fma(mul(x, x), broadcast(0.0713548162726f), broadcast(1.59576912160573f));
  return mul(not_below(-50.f, x), sigmoid(mul(x, cube)));
}
// x / 2 (1 + erf(x / sqrt 2)) = max(x, 0) - |x| / 2 (1 - erf(|x| / sqrt 2))
TILEKILN_INLINE vf gelu(vf x) {
  const vf size = min(broadcast(1e18f), abs(x));  // the tail is 0 there, and inf times 0 is NaN
  const vf z = mul(size, broadcast(0.70710678118655f)), tail = erfc_of_positive(z, gauss(z));
  return sub(max(zero(), x), mul(mul(size, broadcast(0.5f)), tail));
}

// A function and its derivative.
struct Sloped { vf value, slope; };

// Gelu and its slope, F = (1 + erf(x / sqrt 2)) / 2: x F and F + x exp(-x^2 / 2) / sqrt(2 pi). The slope is 0 or 1 beyond 13.
TILEKILN_INLINE Sloped gelu_sloped(vf x) {
  const vf near = min(broadcast(50.f), not_below(-50.f, x)), size = abs(near);
  const vf z = mul(size, broadcast(0.70710678118655f)), e = gauss(z);
  const vf half = mul(broadcast(0.5f), erfc_of_positive(z, e));
  const vf f = select(equal(near, size), sub(broadcast(1.f), half), half);
  return {sub(max(zero(), x), mul(size, half)), fma(mul(near, broadcast(0.398942280401433f)), e, f)};
}
// Gelu by its tanh and its slope, s = sigmoid(2 y): x s and s + x s (1 - s) (2 y)'.
TILEKILN_INLINE Sloped gelu_tanh_sloped(vf x) {
  const vf near = min(broadcast(50.f), not_below(-50.f, x)), square = mul(near, near);
  const vf cube = fma(square, broadcast(0.0713548162726f), broadcast(1.59576912160573f));
  const vf rise = fma(square, broadcast(0.2140644488178f), broadcast(1.59576912160573f));
  const vf y = max(broadcast(-126.f), min(broadcast(100.f), mul(mul(near, cube), broadcast(-1.44269504088896f))));
  const vf e = exp2<5>(y), s = reciprocal(add(broadcast(1.f), e));  // 1 - s is e s, to its last digits
  return {mul(not_below(-50.f, x), s), fma(mul(mul(near, rise), mul(e, s)), s, s)};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
