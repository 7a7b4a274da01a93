// SPDX-License-Identifier: MIT
// Cross entropy of rows of logits, and its gradient. With s = logit_scale x, lse = log(sum(exp(s))) and l the label:
//   loss = lse - on s[l] - off sum(s) + lse_square_scale lse^2
//   dx = dloss logit_scale (exp(s - lse) (1 + 2 lse_square_scale lse) - off - on [j = l])
//
// A row is read once: each thread keeps the greatest s so far and the sum of exponentials less it, and both are joined
// in one order.
// -D: HELD (vectors that a thread reads at once), STAGES (0), BACKWARD (0, 1); TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/norm/cuda/rows.h"

namespace tilekiln::cuda::norm {

using Problem = tilekiln::norm::CrossEntropy;

// The label of a row: ignored, or a class of these logits, or -1, that of none.
struct Label {
  bool ignored;
  long long place;
};
TILEKILN_DEVICE Label label_of(const Problem& a, long long m) {
  const long long label =
      a.label_bytes == 8 ? static_cast<const long long*>(a.labels)[m] : static_cast<const int*>(a.labels)[m];
  const bool here = label >= a.first_class && label - a.first_class < a.columns;
  return {label == a.ignore_index, here ? label - a.first_class : -1};
}

TILEKILN_DEVICE float power(float s, float less) { return exp2_approx((s - less) * kLog2E); }

// A row that is read once, kHeld vectors on their way while as many are used. The first are asked for when it is made.
struct Scan {
  using Vectors = uint4[kHeld];

  const Element* x;
  int columns, whole, step, first;  // whole: columns of whole vectors
  bool wide;
  Vectors next;

  __device__ __forceinline__ Scan(const Team& team, const Element* x, int columns, bool wide)
      : x(x),
        columns(columns),
        whole(wide ? columns / kWide * kWide : 0),
        step(team.lanes * kWide),
        first(team.lane * kWide),
        wide(wide) {
    ask();
  }
  __device__ __forceinline__ void ask() {
#pragma unroll
    for (int i = 0; i < kHeld; ++i) next[i] = load_vector_once(first + i * step < whole, x + first + i * step);
  }
  template <class F> __device__ __forceinline__ void pass(F&& f) {
    const int begin = first;
    while (first < whole) {
      Vectors now;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) now[i] = next[i];
      const int at = first;
      first += kHeld * step;
      ask();
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (at + i * step < whole) f(now[i], at + i * step, kWide);
      }
    }
    for (int j = whole + begin; j < columns; j += step)
      f(load_vector(x + j, bytes_of(columns - j), wide), j, columns - j);
  }
};

TILEKILN_DEVICE void losses(const Params<Problem>& p) {
  __shared__ float shared[3][32];
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const x = static_cast<const Element*>(a.logits) + m * a.logits_row;
    Scan scan(team, x, a.columns, p.wide);
    const Label label = label_of(a, m);
    float loss = 0, lse = 0;
    if (!label.ignored) {  // the same for all of a team
      const bool known = a.given_lse != nullptr, all = a.off != 0;
      float most = -kInfinity, sum = 0, plain = 0, of_label = 0;
      if (label.place >= 0) of_label = a.on * (a.logit_scale * value_of(x[label.place]));
      if (!known || all) {
        scan.pass([&](uint4 vector, int, int left) {
          float v[kWide];
          widen(vector, v);
          if (all) {  // absent ones are 0
#pragma unroll
            for (int e = 0; e < kWide; ++e) plain += v[e];
          }
          if (known) return;
          float here = most;
#pragma unroll
          for (int e = 0; e < kWide; ++e) {
            v[e] = e < left ? a.logit_scale * v[e] : -kInfinity;
            here = fmaxf(here, v[e]);
          }
          const float less = here == -kInfinity ? 0.f : here;  // -infinity less itself is no number
          if (here > most) sum = most == -kInfinity ? sum : sum * power(most, less);
          most = here;
#pragma unroll
          for (int e = 0; e < kWide; ++e) sum += power(v[e], less);
        });
      }
      if (known) {
        lse = a.given_lse[m];
      } else {
        const float top = joined(team, most, shared[0], [](float one, float other) { return fmaxf(one, other); });
        if (most != -kInfinity) sum *= power(most, top);
        lse = top + logf(sum_of(team, sum, shared[1]));
      }
      loss = lse + a.lse_square_scale * lse * lse;
      loss -= of_label;
      if (all) loss -= a.off * (a.logit_scale * sum_of(team, plain, shared[2]));
    }
    if (team.lane == 0) {
      a.loss[m] = loss;
      if (a.lse != nullptr) a.lse[m] = lse;
    }
    if (!team.warp && m + team.step < a.rows) __syncthreads();  // shared is the next row's
  }
}

TILEKILN_DEVICE void gradients(const Params<Problem>& p) {
  const Problem& a = p.problem;
  const Team team = team_of(p.warps);
  for (long long m = team.row; m < a.rows; m += team.step) {
    const Element* const x = static_cast<const Element*>(a.logits) + m * a.logits_row;
    Scan scan(team, x, a.columns, p.wide);
    const Label label = label_of(a, m);
    Element* const dx = static_cast<Element*>(a.dlogits) + m * a.dlogits_row;
    const auto bytes = [&](int j) { return (a.columns - j) * int(sizeof(Element)); };
    if (label.ignored) {
      for (int j = team.lane * kWide; j < a.columns; j += team.lanes * kWide)
        store_vector(dx + j, make_uint4(0, 0, 0, 0), bytes(j), p.wide);
      continue;
    }
    const float lse = a.given_lse[m], by = 1 + 2 * a.lse_square_scale * lse, weight = a.dloss[m] * a.logit_scale;
    scan.pass([&](uint4 vector, int j, int left) {
      float v[kWide];
      widen(vector, v);
      const long long at = label.place - j;
#pragma unroll
      for (int e = 0; e < kWide; ++e)
        v[e] = weight * (power(a.logit_scale * v[e], lse) * by - (e == at ? a.off + a.on : a.off));
      store_vector(dx + j, narrow(v), bytes_of(left), p.wide);
    });
  }
}

}  // namespace tilekiln::cuda::norm

using namespace tilekiln::cuda;

extern "C" __constant__ norm::Build rows_build = {HELD, STAGES, kDtype, 512};

extern "C" __global__ void __launch_bounds__(512, 2) rows(const __grid_constant__ norm::Params<norm::Problem> p) {
  if constexpr (BACKWARD)
    norm::gradients(p);
  else
    norm::losses(p);
}
