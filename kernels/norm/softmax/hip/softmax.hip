// SPDX-License-Identifier: MIT
// Rows of softmax. A NaN may be lost in the maximum, not in the sum; +infinity, or -infinity alone, makes the difference NaN.
// Emulated (functional), never run on AMD silicon. Compile time: TK_HELD, TK_BF16, TK_FP32.
#include "kernels/norm/hip/rows.h"
#include "kernels/norm/softmax/engine.h"

using namespace tilekiln::hip;
using namespace tilekiln::hip::norm;

TK_ROWS(tilekiln::norm::SoftmaxProblem) {
  TK_SHARED float shared[2][32];
  const auto& a = p.problem;
  const Team team = team_of(p);
  const bool wide = p.wide;
  for (i64 m = team.first; m < a.rows; m += team.step) {
    const TK_GLOBAL Element* const x = global((const Element*)a.x) + m * a.x_row;
    TK_GLOBAL Element* const y = global((Element*)a.y) + m * a.y_row;
    const auto load = [&](int j) TK_INLINE { return load_vector(x + j, a.columns - j, wide); };
    auto row = held(team, a.columns, load, load);
    float most = -kInfinity;
    row.each([&](Vector vector, int, int count) TK_INLINE {
      const Floats v = floats(vector);
#pragma unroll
      for (int i = 0; i < kWide; ++i) most = i < count ? max(most, v[i]) : most;
    });
    most = joined(team, most, shared[0], [](float one, float other) TK_INLINE { return max(one, other); });
    const auto power = [&](float of) TK_INLINE { return exp2((of - most) * kLog2e); };
    float sum = 0;
    row.each([&](Vector vector, int, int count) TK_INLINE {
      const Floats v = floats(vector);
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum += i < count ? power(v[i]) : 0.f;
    });
    const float by = 1.f / sum_of(team, sum, shared[1]);
    row.each([&](Vector vector, int j, int count) TK_INLINE {
      Floats v = floats(vector);
#pragma unroll
      for (int i = 0; i < kWide; ++i) v[i] = power(v[i]) * by;
      store_vector(y + j, rounded(v), count, wide);
    });
    end_row(team);
  }
}
