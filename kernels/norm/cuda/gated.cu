// Rows of silu(gate) up. With s = sigmoid(gate): y = gate s up; silu(-infinity) is 0.
// -D: HELD, STAGES (0); TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/rows.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::Gated;

TILEKILN_DEVICE float silu(float x) {
  x = x < -1e30f ? -1e30f : x;
  return __fdividef(x, 1.f + exp2_approx(-kLog2E * x));
}

TILEKILN_DEVICE void gated(const Row<Problem>& p) {
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

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype};

extern "C" __global__ void __launch_bounds__(1024) rows(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::gated(p);
}
