// SPDX-License-Identifier: MIT
// Rows of act(gate) up, and their gradients, act silu or gelu:
//   y = act(gate) up, of which act(-infinity) is 0;  dgate = dy up act'(gate),  dup = dy act(gate)
// -D: HELD, STAGES (0), BACKWARD (0, 1), GELU (0, 1); TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/rows.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::Gated;

TILEKILN_DEVICE float silu(float x) {
  x = x < -1e30f ? -1e30f : x;
  return __fdividef(x, 1.f + exp2_approx(-kLog2E * x));
}

// An activation and its derivative.
struct Sloped { float value, slope; };
// Silu, s = sigmoid(x): x s and s (1 + x (1 - s)).
TILEKILN_DEVICE Sloped silu_sloped(float x) {
  const float s = __fdividef(1.f, 1.f + exp2_approx(-kLog2E * x));
  return {x * s, s * fmaf(x, 1.f - s, 1.f)};
}

TILEKILN_DEVICE float within(float x, float most) { return x > most ? most : x < -most ? -most : x; }
// Gelu, F = (1 + erf(x / sqrt 2)) / 2: x F and F + x exp(-x^2 / 2) / sqrt(2 pi), which is 0 or 1 far from 0. 1 - erf by
// Abramowitz and Stegun 7.1.26, absolute error 1.5e-7.
TILEKILN_DEVICE Sloped gelu_sloped(float x) {
  const float near = within(x, 50.f), size = fabsf(near), z = 0.70710678118655f * size;
  const float gauss = exp2_approx(-kLog2E * z * z), t = __fdividef(1.f, fmaf(0.3275911f, z, 1.f));
  float y = fmaf(1.061405429f, t, -1.453152027f);
  y = fmaf(y, t, 1.421413741f), y = fmaf(y, t, -0.284496736f), y = fmaf(y, t, 0.254829592f);
  const float half = 0.5f * (y * t) * gauss, f = near < 0 ? half : 1.f - half;
  return {fmaxf(x, 0.f) - size * half, fmaf(0.398942280401433f * near, gauss, f)};
}
// Gelu by its tanh, s = sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3): x s and s + x s (1 - s) (2 y)'.
TILEKILN_DEVICE Sloped gelu_tanh_sloped(float x) {
  const float near = within(x, 50.f), square = near * near;
  const float cube = fmaf(square, 0.0713548162726f, 1.59576912160573f),
              rise = fmaf(square, 0.2140644488178f, 1.59576912160573f);
  const float e = exp2_approx(fminf(-kLog2E * near * cube, 100.f)), s = __fdividef(1.f, 1.f + e);
  return {(x < -50.f ? -50.f : x) * s, fmaf(near * rise * (e * s), s, s)};
}

TILEKILN_DEVICE Sloped sloped(const Problem& a, float x) {
  if constexpr (GELU) return a.tanh ? gelu_tanh_sloped(x) : gelu_sloped(x);
  return silu_sloped(x);
}
TILEKILN_DEVICE float activated(const Problem& a, float x) {
  if constexpr (GELU) return sloped(a, x).value;
  return silu(x);
}

TILEKILN_DEVICE void gradients(const Params<Problem>& p) {
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const dy = static_cast<const Element*>(a.dy) + m * a.dy_row;
    const Element* const gate = static_cast<const Element*>(a.gate) + m * a.gate_row;
    const Element* const up = static_cast<const Element*>(a.up) + m * a.up_row;
    Element* const dgate = static_cast<Element*>(a.dgate) + m * a.dgate_row;
    Element* const dup = static_cast<Element*>(a.dup) + m * a.dup_row;
    const int step = team.lanes * kWide;
    for (int first = team.lane * kWide; first < a.columns; first += kHeld * step) {
      uint4 dys[kHeld], gates[kHeld], ups[kHeld];
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int j = first + i * step, bytes = (a.columns - j) * int(sizeof(Element));
        if (j >= a.columns) break;
        dys[i] = load_vector(dy + j, bytes, p.wide), gates[i] = load_vector(gate + j, bytes, p.wide);
        ups[i] = load_vector(up + j, bytes, p.wide);
      }
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int j = first + i * step, bytes = (a.columns - j) * int(sizeof(Element));
        if (j >= a.columns) break;
        float d[kWide], g[kWide], u[kWide];
        widen(dys[i], d), widen(gates[i], g), widen(ups[i], u);
#pragma unroll
        for (int e = 0; e < kWide; ++e) {
          const Sloped act = sloped(a, g[e]);
          const float of_up = d[e] * u[e];
          u[e] = d[e] * act.value, g[e] = of_up * act.slope;
        }
        store_vector(dgate + j, narrow(g), bytes, p.wide), store_vector(dup + j, narrow(u), bytes, p.wide);
      }
    }
  }
}

TILEKILN_DEVICE void gated(const Params<Problem>& p) {
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  const bool wide = p.wide;
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const gate = static_cast<const Element*>(a.gate) + m * a.gate_row;
    const Element* const up = static_cast<const Element*>(a.up) + m * a.up_row;
    Element* const y = static_cast<Element*>(a.y) + m * a.y_row;
    const int step = team.lanes * kWide;
    const auto bytes = [&](int j) { return (a.columns - j) * int(sizeof(Element)); };
    const auto finish = [&](int j, uint4 of_gate, uint4 of_up) {
      float g[kWide], u[kWide];
      widen(of_gate, g), widen(of_up, u);
#pragma unroll
      for (int e = 0; e < kWide; ++e) g[e] = activated(a, g[e]) * u[e];
      store_vector(y + j, narrow(g), bytes(j), wide);
    };
    uint4 gates[kHeld], ups[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int j = team.lane * kWide + i * step;
      if (j >= a.columns) break;
      gates[i] = load_vector(gate + j, bytes(j), wide), ups[i] = load_vector(up + j, bytes(j), wide);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int j = team.lane * kWide + i * step;
      if (j < a.columns) finish(j, gates[i], ups[i]);
    }
    for (int j = team.lane * kWide + kHeld * step; j < a.columns; j += step)
      finish(j, load_vector(gate + j, bytes(j), wide), load_vector(up + j, bytes(j), wide));
  }
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 1024, 0, kEarly};

extern "C" __global__ void __launch_bounds__(1024) rows(const __grid_constant__ norm::Params<norm::Problem> p) {
  begin_between_launches();
  if constexpr (BACKWARD)
    norm::gradients(p);
  else
    norm::gated(p);
}
