// SPDX-License-Identifier: MIT
// Rows of attention over two parts of the keys as those over all:
//   lse = log(exp(lse_a) + exp(lse_b)), out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b
// A part without keys, of lse -infinity, has weight 0 whatever its row holds, and so have two.
// -D: HELD, STAGES (0); TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/rows.h"
#include "kernels/norm/merge/engine.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::MergeProblem;

TILEKILN_DEVICE void merge(const Params<Problem>& p) {
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  for (long long m = team.row; m < a.rows; m += team.step) {
    const float lse_a = a.lse_a[m * a.a_step], lse_b = a.lse_b[m * a.b_step], most = larger_or_nan(lse_a, lse_b);
    const bool some_a = lse_a != -kInfinity, some_b = lse_b != -kInfinity;
    float by_a = some_a ? exp2_approx((lse_a - most) * kLog2E) : 0.f;
    float by_b = some_b ? exp2_approx((lse_b - most) * kLog2E) : 0.f;
    const float sum = by_a + by_b, scale = sum == 0 ? 0.f : 1 / sum;
    by_a *= scale, by_b *= scale;
    if (a.lse && team.lane == 0) a.lse[m * a.lse_step] = sum == 0 ? -kInfinity : most + logf(sum);
    const Element* const x = static_cast<const Element*>(a.out_a) + m * a.a_row;
    const Element* const y = static_cast<const Element*>(a.out_b) + m * a.b_row;
    Element* const to = static_cast<Element*>(a.out) + m * a.out_row;
    for (int j = team.lane * kWide; j < a.columns; j += team.lanes * kWide) {
      const int bytes = (a.columns - j) * int(sizeof(Element));
      float v[kWide], w[kWide];
      widen(load_vector(x + j, bytes, p.wide), v), widen(load_vector(y + j, bytes, p.wide), w);
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        const float of_a = some_a ? by_a * v[e] : 0.f;
        v[e] = some_b ? fmaf(by_b, w[e], of_a) : of_a;
      }
      store_vector(to + j, narrow(v), bytes, p.wide);
    }
  }
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 512, 0, kEarly};

extern "C" __global__ void __launch_bounds__(512) rows(const __grid_constant__ norm::Params<norm::Problem> p) {
  begin_between_launches();
  norm::merge(p);
}
