// SPDX-License-Identifier: MIT
// Rows of softmax. A NaN may be lost in the maximum, not in the sum; +infinity, or -infinity alone, makes the
// difference NaN.
// -D: HELD, STAGES; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/staged.h"
#include "kernels/norm/softmax/engine.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::SoftmaxProblem;

// The passes over a row. `pass(f)`: f(vector, elements of it that are there), of each vector of a thread; `kPartly`:
// some have not all, else all or none. `last(f)`: vectors become f(vector), and the row y.
template <bool kPartly, class Pass, class Last>
TILEKILN_DEVICE void softmax(const Team& team, float (&shared)[2][32], Pass&& pass, Last&& last) {
  float most = -kInfinity;
  pass([&](uint4 vector, int count) {
    float v[kWide], here = kPartly ? most : -kInfinity;
    widen(vector, v);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      if (!kPartly || e < count) here = fmaxf(here, v[e]);
    }
    most = kPartly ? here : count > 0 ? fmaxf(most, here) : most;
  });
  most = joined(team, most, shared[0], [](float one, float other) { return fmaxf(one, other); });
  const auto power = [&](float x) { return exp2_approx((x - most) * kLog2E); };
  float sum = 0;
  pass([&](uint4 vector, int count) {
    float v[kWide], part = kPartly ? sum : 0.f;
    widen(vector, v);
#pragma unroll
    for (int e = 0; e < kWide; ++e) part += !kPartly || e < count ? power(v[e]) : 0.f;
    sum = kPartly ? part : count > 0 ? sum + part : sum;
  });
  const float by = 1 / sum_of(team, sum, shared[1]);
  last([&](uint4 vector) {
    float v[kWide];
    widen(vector, v);
#pragma unroll
    for (int e = 0; e < kWide; ++e) v[e] = power(v[e]) * by;
    return narrow(v);
  });
}

// Rows as they may be.
TILEKILN_DEVICE void any_rows(const Params<Problem>& p) {
  __shared__ float shared[2][32];
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    Element* const y = static_cast<Element*>(a.y) + m * a.y_row;
    const auto load = [&](int j) { return load_vector(x + j, (a.columns - j) * int(sizeof(Element)), p.wide); };
    auto row = held<1>(team, a.columns, load, load);
    softmax<true>(
        team, shared,
        [&](auto&& f) { row.each([&](uint4 vector, int, int bytes) { f(vector, bytes / int(sizeof(Element))); }); },
        [&](auto&& f) {
          row.each([&](uint4 vector, int j, int bytes) { store_vector(y + j, f(vector), bytes, p.wide); });
        });
    if (!team.warp && m + team.step < a.rows) __syncthreads();  // shared is the next row's
  }
}

// A row whose vectors are read once.
template <class Source>
TILEKILN_DEVICE void softmax_whole(const Problem& a, const Team& team, long long m, Source& row,
                                   float (&shared)[2][32]) {
  softmax<false>(
      team, shared,
      [&](auto&& f) {
        row.pass([&](const Vectors& vector, Place at) {
#pragma unroll
          for (int i = 0; i < kHeld; ++i) f(vector[i], at.there(i) ? kWide : 0);
        });
      },
      [&](auto&& f) {
        row.last_pass([&](Vectors& vector, Place at) {
#pragma unroll
          for (int i = 0; i < kHeld; ++i) vector[i] = f(vector[i]);
          store(at, vector, static_cast<Element*>(a.y) + m * a.y_row);
        });
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
