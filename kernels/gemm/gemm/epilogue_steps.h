// SPDX-License-Identifier: MIT
// Steps of a product's epilogue, of NVIDIA's and AMD's GPUs: an extra matrix's element, activations.
#pragma once

#include "kernels/backends/words.h"
#include "kernels/gemm/engine.h"
#include "kernels/gemm/gemm/extra.h"

namespace tilekiln::cuda::gemm {

using matrix::Activation;

constexpr float kLeast = -1e30f;  // in place of -infinity, whose product with 0 is no number

// Words that differ. NaN of x stays NaN; gelu is x / 2 (1 + erf(x / sqrt 2)).
#ifdef __HIP__
TILEKILN_DEVICE float not_below(float least, float x) { return x < least ? least : x; }
TILEKILN_DEVICE float not_above(float most, float x) { return x > most ? most : x; }
// 1 - erf z by Abramowitz and Stegun 7.1.26, absolute error 1.5e-7; z >= 0 or NaN.
TILEKILN_DEVICE float erfc_of_positive(float z) {
  const float t = __fdividef(1.f, fmaf(0.3275911f, z, 1.f));
  float sum = fmaf(t, 1.061405429f, -1.453152027f);
  sum = fmaf(t, sum, 1.421413741f);
  sum = fmaf(t, sum, -0.284496736f);
  sum = fmaf(t, sum, 0.254829592f);
  return t * sum * exp2_approx(-kLog2E * z * z);
}
TILEKILN_DEVICE float gelu(float x) {  // max(x, 0) - |x| / 2 (1 - erf(|x| / sqrt 2))
  x = not_below(kLeast, x);
  const float size = fabsf(x);
  return not_below(0.f, x) -
         0.5f * not_above(1e30f, size) * erfc_of_positive(not_above(30.f, size * 0.70710678118655f));
}
#else
TILEKILN_DEVICE float not_below(float least, float x) { return larger_or_nan(least, x); }
TILEKILN_DEVICE float not_above(float most, float x) { return -larger_or_nan(-most, -x); }
TILEKILN_DEVICE float gelu(float x) {
  return x = not_below(kLeast, x), 0.5f * x * (1.f + erff(x * 0.7071067811865476f));
}
#endif
TILEKILN_DEVICE float relu(float x) { return not_below(0.f, x); }

// x / (1 + exp(-y)) of finite x or x = +infinity.
TILEKILN_DEVICE float gated(float x, float y) { return __fdividef(x, 1.f + exp2_approx(-kLog2E * y)); }
// The cube may be infinite: its sign is what counts then.
TILEKILN_DEVICE float gelu_tanh(float x) {
  x = not_below(kLeast, x);
  return gated(x, 1.5957691216057308f * fmaf(0.044715f * x * x, x, x));
}

// Joins an element of an extra matrix to a sum.
TILEKILN_DEVICE void join(const matrix::DeviceExtra& extra, float& sum, float x) {
  sum = extra.multiply ? sum * x : fmaf(extra.factor, x, sum);
}

template <int N, class Function> TILEKILN_DEVICE void each(float (&v)[N], Function&& f) {
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = f(v[i]);
}

template <class P, int N> TILEKILN_DEVICE void activate(const P& p, float (&v)[N]) {
  switch (Activation(p.activation)) {
    case Activation::gelu: each(v, gelu); break;
    case Activation::gelu_tanh: each(v, gelu_tanh); break;
    case Activation::silu: each(v, [](float x) { return x = not_below(kLeast, x), gated(x, x); }); break;
    case Activation::sigmoid: each(v, [](float x) { return gated(1.f, x); }); break;
    case Activation::hardswish:
      each(v,
           [](float x) { return x = not_below(-3.f, x), x * not_above(1.f, not_below(0.f, fmaf(x, 1 / 6.f, 0.5f))); });
      break;
    case Activation::clamp: each(v, [&](float x) { return not_above(p.clamp_max, not_below(p.clamp_min, x)); }); break;
    case Activation::relu: each(v, relu); break;
    default: break;
  }
}

}  // namespace tilekiln::cuda::gemm
