// Rows of softmax. A NaN may be lost in the maximum, not in the sum; +infinity, or -infinity alone, makes the difference NaN.
// -D: HELD, STAGES; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/staged.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::SoftmaxProblem;

template <bool kStaged> TILEKILN_DEVICE void softmax(const Row<Problem>& p) {
  __shared__ float shared[2][32];
  const Problem& a = p.problem;
  const Team team = team_of(!kStaged && p.warps);
  const bool wide = kStaged || p.wide;
  Staged staged;
  if constexpr (kStaged) stage(staged, team, a.x, a.x_row, a.rows, a.columns, p.stages);
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    Element* const y = static_cast<Element*>(a.y) + m * a.y_row;
    const auto load = [&](int j) {
      return load_vector(x + j, kStaged ? 16 : (a.columns - j) * int(sizeof(Element)), wide);
    };
    auto&& row = [&]() -> decltype(auto) {
      if constexpr (kStaged) {
        staged.begin();
        return (staged);
      } else {
        return held<kHeld>(team, a.columns, load, load);
      }
    }();
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
      store_vector(y + j, narrow(v), bytes, wide);
    });
    if (!team.warp && m + team.step < a.rows) __syncthreads();  // shared is the next row's
  }
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 1024};

extern "C" __global__ void __launch_bounds__(1024) rows(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::softmax<false>(p);
}
extern "C" __global__ void __launch_bounds__(norm::kStagedThreads, 1)
    rows_staged(const __grid_constant__ norm::Row<norm::Problem> p) {
  norm::softmax<true>(p);
}
