// SPDX-License-Identifier: MIT
// Rows of softmax. A NaN may be lost in the maximum, not in the sum; +infinity, or -infinity alone, makes the
// difference NaN.
// -D: HELD, STAGES; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/staged.h"
#include "kernels/norm/softmax/engine.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::SoftmaxProblem;

template <class Row>
TILEKILN_DEVICE void softmax(const Team& team, Row& row, float (&shared)[2][32], Element* y) {
  constexpr bool kPartly = Row::kPartly;
  float most = -kInfinity;
  row.pass([&](uint4 vector, int, int left) {
    float v[kWide], here = kPartly ? most : -kInfinity;
    widen(vector, v);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      if (!kPartly || e < left) here = fmaxf(here, v[e]);
    }
    most = kPartly ? here : left > 0 ? fmaxf(most, here) : most;
  });
  most = joined(team, most, shared[0], [](float one, float other) { return fmaxf(one, other); });
  const auto power = [&](float x) { return exp2_approx((x - most) * kLog2E); };
  float sum = 0;
  row.pass([&](uint4 vector, int, int left) {
    float v[kWide], part = kPartly ? sum : 0.f;
    widen(vector, v);
#pragma unroll
    for (int e = 0; e < kWide; ++e) part += !kPartly || e < left ? power(v[e]) : 0.f;
    sum = kPartly ? part : left > 0 ? sum + part : sum;
  });
  const float by = 1 / sum_of(team, sum, shared[1]);
  row.put(y, [&](uint4 vector) {
    float v[kWide];
    widen(vector, v);
#pragma unroll
    for (int e = 0; e < kWide; ++e) v[e] = power(v[e]) * by;
    return narrow(v);
  });
}

TILEKILN_DEVICE const Element* x_of(const Problem& a, long long m) {
  return static_cast<const Element*>(a.x) + m * a.x_row;
}
TILEKILN_DEVICE Element* y_of(const Problem& a, long long m) { return static_cast<Element*>(a.y) + m * a.y_row; }

// Rows as they may be.
TILEKILN_DEVICE void any_rows(const Params<Problem>& p) {
  __shared__ float shared[2][32];
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const x = x_of(a, m);
    const auto load = [&](int j, bool = false) { return load_vector(x + j, bytes_of(a.columns - j), p.wide); };
    auto row = held<1>(team, a.columns, p.wide, load, load);
    softmax(team, row, shared, y_of(a, m));
    if (!team.warp && m + team.step < a.rows) __syncthreads();  // shared is the next row's
  }
}

TILEKILN_DEVICE void whole_rows(const Params<Problem>& p) {
  __shared__ float shared[2][32];
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  if (team.row >= a.rows) return;  // of four rows a block, which meet no barrier
  Whole<false> row(team, a.columns, x_of(a, team.row), nullptr);
  softmax(team, row, shared, y_of(a, team.row));
}

TILEKILN_DEVICE void staged_rows(const Params<Problem>& p) {
  __shared__ float shared[2][32];
  const Problem& a = p.problem;
  const Team team = team_of(false);
  Ring row;
  stage(row, a.x, a.x_row, a.rows, a.columns, p.stages);
  for (long long m = team.row; m < a.rows; m += team.step) {
    row.begin();
    softmax(team, row, shared, y_of(a, m));
    __syncthreads();  // shared is the next row's
  }
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 1024};

extern "C" __global__ void __launch_bounds__(1024) rows(const __grid_constant__ norm::Params<norm::Problem> p) {
  norm::any_rows(p);
}
extern "C" __global__ void __launch_bounds__(1024) rows_whole(const __grid_constant__ norm::Params<norm::Problem> p) {
  norm::whole_rows(p);
}
#if STAGES > 0
extern "C" __global__ void __launch_bounds__(norm::kStagedThreads, 1)
    rows_staged(const __grid_constant__ norm::Params<norm::Problem> p) {
  norm::staged_rows(p);
}
#endif
