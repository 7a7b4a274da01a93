// SPDX-License-Identifier: MIT
// Tokens times the factors of each of their experts, as bytes: row m is of token m % tokens, for its choice m / tokens.
// A row is read once, where HELD vectors a thread hold it; its factors twice.
//
// -D: HELD; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/quantise.h"
#include "kernels/norm/cuda/rows.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::Problem;

TILEKILN_DEVICE void quantise(const Params<Problem>& p) {
  __shared__ unsigned shared[kClusterWarps];
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  const bool wide = p.wide, fp8 = a.y_dtype != 0;
  for (long long m = team.row; m < a.rows; m += team.step) {
    const long long choice = m / a.tokens;
    const int token = int(m - choice * a.tokens);
    const int expert = a.topk_ids[token * a.topk_ids_row + choice];
    const bool known = unsigned(expert) < unsigned(a.experts);
    const Element* const x = static_cast<const Element*>(a.x) + token * a.x_row;
    const float* const by = a.smooth_scale + (known ? expert : 0) * a.smooth_scale_row;
    const auto load = [&](int j, bool = false) {
      return known ? load_vector(x + j, bytes_of(a.columns - j), wide) : make_uint4(0, 0, 0, 0);
    };
    auto row = held<kHeld>(team, a.columns, wide, load, load);
    const auto smoothed = [&](uint4 vector, int j, int left, float (&v)[kWide]) {
      widen(vector, v);
#pragma unroll
      for (int i = 0; i < kWide; ++i) v[i] = known && i < left ? v[i] * by[j + i] : 0.f;
    };
    unsigned top = 0;  // the bits of the largest magnitude: those of NaN are above infinity's
    row.pass([&](uint4 vector, int j, int left) {
      float v[kWide];
      smoothed(vector, j, left, v);
#pragma unroll
      for (int i = 0; i < kWide; ++i) top = max(top, __float_as_uint(v[i]) & 0x7fffffffu);
    });
    top = joined(team, top, shared, [](unsigned one, unsigned other) { return max(one, other); });
    const Scale to = scale_of(__uint_as_float(top), fp8);
    if (team.lane == 0) a.y_scale[choice * a.y_scale_choice + token] = to.scale;
    uint8_t* const y = static_cast<uint8_t*>(a.y) + choice * a.y_choice + token * a.y_row;
    row.pass([&](uint4 vector, int j, int left) {
      uint32_t words[kWide / 4] = {};
      if (to.some) {
        float v[kWide];
        smoothed(vector, j, left, v);
#pragma unroll
        for (int i = 0; i < kWide / 4; ++i) words[i] = quantised(v + 4 * i, to.by, fp8);
      }
      store_bytes(y + j, words, left);
    });
    if (!team.warp && m + team.step < a.rows) __syncthreads();  // shared is the next row's
  }
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, 0, kDtype, 1024, 0, kEarly};

extern "C" __global__ void __launch_bounds__(1024) rows(const __grid_constant__ norm::Params<norm::Problem> p) {
  begin_between_launches();
  norm::quantise(p);
}
