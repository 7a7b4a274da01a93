// SPDX-License-Identifier: MIT
// The experts of tokens by scores, a row a warp. Groups are ranked first, each by a lane's register; the next expert is
// the first of the largest that come behind the last one, by key and then by index, as in topk_softmax.
// -D: THREADS; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/backends/cuda/vectors.h"
#include "kernels/moe/topk_gating/cuda/params.h"

namespace tilekiln::cuda::moe {

using tilekiln::moe::Score;
using tilekiln::moe::TopkGating;

constexpr int kKept = 16;  // keys of a lane
constexpr float kNaN = __builtin_nanf("");

struct Best {
  float key;
  int index;
};
// Orders by key, and of equal ones the first.
TILEKILN_DEVICE bool comes_before(Best a, Best b) { return a.key > b.key || (a.key == b.key && a.index < b.index); }
TILEKILN_DEVICE Best best_of_warp(Best best) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    const Best other = {__shfl_xor_sync(~0u, best.key, i), __shfl_xor_sync(~0u, best.index, i)};
    if (comes_before(other, best)) best = other;
  }
  return best;
}
TILEKILN_DEVICE float sum_of_warp(float v) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(~0u, v, i);
  return v;
}

// log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|): 2 atanh(e / (2 + e)), whose series is cut below 2e-9 of it.
TILEKILN_DEVICE float softplus(float x) {
  const float e = exp2_approx(-kLog2E * fabsf(x)), s = __fdividef(e, 2.f + e), square = s * s;
  float y = 1.f / 17;
#pragma unroll
  for (int i = 15; i > 0; i -= 2) y = fmaf(y, square, 1.f / float(i));
  return fmaf(s + s, y, fmaxf(x, 0.f));
}

// A row of logits: scores, and keys by which experts are chosen, -infinity of those in groups that are left out.
struct Logits {
  const TopkGating& a;
  const Element* x;
  float most, by;           // of softmax: the largest logit; by: 1 / the sum of scores
  float groups[kGroupsOf];  // keys of groups, lane l has those of l, l + 32, ..
  Best last_group;          // the last that counts

  __device__ __forceinline__ float score(float v) const {
    if (a.score == Score::softmax) return exp2_approx((v - most) * kLog2E);
    return a.score == Score::sigmoid ? __fdividef(1.f, 1.f + exp2_approx(-kLog2E * v)) : sqrtf(softplus(v));
  }
  __device__ __forceinline__ float key(int j) const {
    const float v = score(value_of(x[j])) * by;
    return a.bias ? v + a.bias[j] : v;
  }
  // f(column, whether it is there), the same columns for all lanes of a warp but for their own place.
  template <class F> __device__ __forceinline__ void each(F&& f) const {
    for (int first = 0; first < a.experts; first += 32) {
      const int j = first + (threadIdx.x & 31);
      f(j, j < a.experts);
    }
  }
  __device__ __forceinline__ bool counts(int j) const {
    const int g = j / (a.experts / a.groups);
    float key = 0;
#pragma unroll
    for (int i = 0; i < kGroupsOf; ++i) {
      const float one = __shfl_sync(~0u, groups[i], g & 31);
      key = g / 32 == i ? one : key;
    }
    return !comes_before(last_group, {key, g});
  }
};

// Ranks groups by their largest key or the sum of their two largest.
TILEKILN_DEVICE void rank_groups(Logits& row) {
  const TopkGating& a = row.a;
  const int size = a.experts / a.groups, lane = threadIdx.x & 31;
#pragma unroll
  for (float& one : row.groups) one = -kInfinity;
  for (int g = 0; g < a.groups; ++g) {
    float top = -kInfinity, second = -kInfinity;
    for (int j = lane; j < size; j += 32) {
      const float v = fmaxf(row.key(g * size + j), -kLargest);
      second = fmaxf(second, fminf(top, v)), top = fmaxf(top, v);
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
      const float other = __shfl_xor_sync(~0u, top, i), next = __shfl_xor_sync(~0u, second, i);
      second = fmaxf(fmaxf(second, next), fminf(top, other)), top = fmaxf(top, other);
    }
    const float key = a.group_of_two && size > 1 ? fmaxf(top + second, -kLargest) : top;
#pragma unroll
    for (int i = 0; i < kGroupsOf; ++i) row.groups[i] = g == lane + 32 * i ? key : row.groups[i];
  }
  row.last_group = {kInfinity, -1};
  for (int k = 0; k < a.topk_groups; ++k) {
    Best best = {-kInfinity, a.groups};
#pragma unroll
    for (int i = 0; i < kGroupsOf; ++i) {
      const Best one = {row.groups[i], lane + 32 * i};
      if (one.index < a.groups && comes_before(row.last_group, one) && comes_before(one, best)) best = one;
    }
    row.last_group = best_of_warp(best);
  }
}

template <bool kKeeps> TILEKILN_DEVICE void choose(const TopkGating& a, const Element* x, float* weights,
                                                   int* indices) {
  const int lane = threadIdx.x & 31;
  Logits row = {a, x, -kInfinity, 1, {}, {}};
  if (a.score == Score::softmax) {
    row.each([&](int j, bool there) {
      if (there) row.most = fmaxf(row.most, value_of(x[j]));
    });
#pragma unroll
    for (int i = 16; i > 0; i /= 2) row.most = fmaxf(row.most, __shfl_xor_sync(~0u, row.most, i));
  }
  float all = 0;
  row.each([&](int j, bool there) {
    const float s = there ? row.score(value_of(x[j])) : 0.f;
    all += a.score == Score::softmax ? s : s <= kLargest ? 0.f : kNaN;
  });
  all = sum_of_warp(all);
  if (a.score != Score::softmax) all += 1;
  row.by = 1 / all;
  float kept[kKept], broken = all == all ? 0.f : 1.f;
  row.each([&](int j, bool there) {
    const float v = there ? row.key(j) : 0.f;
    broken += v == v ? 0.f : 1.f;
  });
  const bool sound = sum_of_warp(broken) == 0;
  const bool grouped = sound && a.groups > a.topk_groups;
  if (grouped) rank_groups(row);
  const auto key_of = [&](int j, bool there) {
    const bool counts = !grouped || row.counts(there ? j : 0);
    return there && counts ? fmaxf(row.key(j), -kLargest) : -kInfinity;
  };
  if constexpr (kKeeps) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] = key_of(lane + 32 * i, lane + 32 * i < a.experts);
  }
  float chosen = 0;
  Best last = {kInfinity, -1};
  for (int k = 0; k < a.topk; ++k) {
    Best best = {-kInfinity, a.experts};
    const auto look = [&](float v, int j) {
      const Best one = {v, j};
      if (v > -kInfinity && comes_before(last, one) && comes_before(one, best)) best = one;
    };
    if (!sound) {
      best.index = k;
    } else if constexpr (kKeeps) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) look(kept[i], lane + 32 * i);
      best = best_of_warp(best);
    } else {
      row.each([&](int j, bool there) { look(key_of(j, there), j); });
      best = best_of_warp(best);
    }
    last = best;
    chosen += row.score(value_of(x[best.index]));
    if (lane == 0) indices[k] = best.index;
  }
  const float factor = a.renormalise ? a.scaling / (chosen / all + 1e-20f) / all : a.scaling / all;
  if (lane != 0) return;
  for (int k = 0; k < a.topk; ++k) weights[k] = sound ? row.score(value_of(x[indices[k]])) * factor : kNaN;
  for (int i = 0; i < a.shared; ++i) indices[a.topk + i] = a.experts + i, weights[a.topk + i] = a.shared_weight;
}

}  // namespace tilekiln::cuda::moe

using namespace tilekiln::cuda;

extern "C" __constant__ moe::Build gating_build = {THREADS, kDtype};

extern "C" __global__ void __launch_bounds__(THREADS) gating_rows(const __grid_constant__ tilekiln::moe::TopkGating a) {
  const long long step = (long long)gridDim.x * (THREADS / 32);
  for (long long m = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; m < a.rows; m += step) {
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    float* const weights = a.weights + m * a.weights_row;
    int* const indices = a.indices + m * a.indices_row;
    if (a.experts <= 32 * moe::kKept)
      moe::choose<true>(a, x, weights, indices);
    else
      moe::choose<false>(a, x, weights, indices);
  }
}
