// SPDX-License-Identifier: MIT
// Rows of silu(gate) up. With s = sigmoid(gate): y = gate s up; silu(-infinity) is 0.
// Emulated (functional), never run on AMD silicon. Compile time: TK_HELD, TK_BF16, TK_FP32.
#include "kernels/norm/hip/rows.h"

using namespace tilekiln::hip;
using namespace tilekiln::hip::norm;

namespace {

TK_DEVICE float silu(float x) {
  x = x < -1e30f ? -1e30f : x;
  return x * reciprocal(1.f + exp2(-kLog2e * x));
}

}  // namespace

TK_ROWS(tilekiln::norm::Gated) {
  const auto& a = p.problem;
  const Team team = team_of(p);
  const bool wide = p.wide;
  for (i64 m = team.first; m < a.rows; m += team.step) {
    const TK_GLOBAL Element* const gate = global((const Element*)a.gate) + m * a.gate_row;
    const TK_GLOBAL Element* const up = global((const Element*)a.up) + m * a.up_row;
    TK_GLOBAL Element* const y = global((Element*)a.y) + m * a.y_row;
    for (int j = team.thread * kWide; j < a.columns; j += team.threads * kWide) {
      const int count = a.columns - j;
      Floats v = floats(load_vector(gate + j, count, wide));
      const Floats u = floats(load_vector(up + j, count, wide));
#pragma unroll
      for (int i = 0; i < kWide; ++i) v[i] = silu(v[i]) * u[i];
      store_vector(y + j, rounded(v), count, wide);
    }
  }
}
