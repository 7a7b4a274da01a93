// SPDX-License-Identifier: MIT
// Rows of silu(gate) up, and their gradients. With s = sigmoid(gate):
//   y = gate s up, of which silu(-infinity) is 0;  dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s
// -D: HELD, STAGES (0), BACKWARD (0, 1); TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/rows.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::Gated;

TILEKILN_DEVICE float silu(float x) {
  x = x < -1e30f ? -1e30f : x;
  return __fdividef(x, 1.f + exp2_approx(-kLog2E * x));
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
          const float s = __fdividef(1.f, 1.f + exp2_approx(-kLog2E * g[e])), of_up = d[e] * u[e];
          u[e] = d[e] * (g[e] * s);
          g[e] = of_up * (s * fmaf(g[e], 1.f - s, 1.f));
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
      for (int e = 0; e < kWide; ++e) g[e] = silu(g[e]) * u[e];
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
