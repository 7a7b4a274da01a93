// SPDX-License-Identifier: MIT
// Rows of softmax. A NaN may be lost in the maximum, not in the sum; +infinity, or -infinity alone, makes the difference NaN.
// -D: HELD, STAGES; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/staged.h"
#include "kernels/norm/softmax/engine.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::SoftmaxProblem;

// Rows as they may be.
TILEKILN_DEVICE void softmax(const Params<Problem>& p) {
  __shared__ float shared[2][32];
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    Element* const y = static_cast<Element*>(a.y) + m * a.y_row;
    const auto load = [&](int j) { return load_vector(x + j, (a.columns - j) * int(sizeof(Element)), p.wide); };
    auto row = held<1>(team, a.columns, load, load);
    float most = -kInfinity;
    row.each([&](uint4 vector, int, int bytes) {
      float v[kWide];
      widen(vector, v);
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        if (i * int(sizeof(Element)) < bytes) most = fmaxf(most, v[i]);
      }
    });
    most = joined(team, most, shared[0], [](float one, float other) { return fmaxf(one, other); });
    const auto power = [&](float x) { return exp2_approx((x - most) * kLog2E); };
    float sum = 0;
    row.each([&](uint4 vector, int, int bytes) {
      float v[kWide];
      widen(vector, v);
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum += i * int(sizeof(Element)) < bytes ? power(v[i]) : 0.f;
    });
    const float by = 1 / sum_of(team, sum, shared[1]);
    row.each([&](uint4 vector, int j, int bytes) {
      float v[kWide];
      widen(vector, v);
#pragma unroll
      for (int i = 0; i < kWide; ++i) v[i] = power(v[i]) * by;
      store_vector(y + j, narrow(v), bytes, p.wide);
    });
    if (!team.warp && m + team.step < a.rows) __syncthreads();  // shared is the next row's
  }
}

// A row whose vectors are read once.
template <class Source>
TILEKILN_DEVICE void softmax_whole(const Problem& a, const Team& team, long long m, Source& row,
                                   float (&shared)[2][32]) {
  float most = -kInfinity;
  row.pass([&](const Vectors& vector, Place at) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kWide], here = -kInfinity;
      widen(vector[i], v);
#pragma unroll
      for (int e = 0; e < kWide; ++e) here = fmaxf(here, v[e]);
      most = at.there(i) ? fmaxf(most, here) : most;
    }
  });
  most = joined(team, most, shared[0], [](float one, float other) { return fmaxf(one, other); });
  const auto power = [&](float x) { return exp2_approx((x - most) * kLog2E); };
  float sum = 0;
  row.pass([&](const Vectors& vector, Place at) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kWide], part = 0;
      widen(vector[i], v);
#pragma unroll
      for (int e = 0; e < kWide; ++e) part += power(v[e]);
      sum += at.there(i) ? part : 0.f;
    }
  });
  const float by = 1 / sum_of(team, sum, shared[1]);
  Element* const y = static_cast<Element*>(a.y) + m * a.y_row;
  row.last_pass([&](Vectors& vector, Place at) {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      float v[kWide];
      widen(vector[i], v);
#pragma unroll
      for (int e = 0; e < kWide; ++e) v[e] = power(v[e]) * by;
      vector[i] = narrow(v);
    }
    store(at, vector, y);
  });
}

TILEKILN_DEVICE void whole_rows(const Params<Problem>& p) {
  __shared__ float shared[2][32];
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  if (team.row >= a.rows) return;  // of four rows a block, which meet no barrier
  Whole<false> row(team, a.columns, static_cast<const Element*>(a.x) + team.row * a.x_row, nullptr);
  softmax_whole(a, team, team.row, row, shared);
}

TILEKILN_DEVICE void staged_rows(const Params<Problem>& p) {
  __shared__ float shared[2][32];
  const Problem& a = p.problem;
  const Team team = team_of(false);
  Ring row;
  stage(row, a.x, a.x_row, a.rows, a.columns, p.stages);
  for (long long m = team.row; m < a.rows; m += team.step) {
    row.begin();
    softmax_whole(a, team, m, row, shared);
    __syncthreads();  // shared is the next row's
  }
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 1024};

extern "C" __global__ void __launch_bounds__(1024) rows(const __grid_constant__ norm::Params<norm::Problem> p) {
  norm::softmax(p);
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
