// SPDX-License-Identifier: MIT
// The largest elements of softmax(x), a row a warp. The next one is the first of the largest that come behind the last
// one, by key and then by index: rows are searched once for each, in registers up to 32 kKept logits, and nothing is
// stored on the way.
// -D: THREADS; TILEKILN_FP16, TILEKILN_FP32.
#include "kernels/backends/cuda/vectors.h"
#include "kernels/moe/cuda/build.h"
#include "kernels/moe/topk_softmax/engine.h"

namespace tilekiln::cuda::moe {

using tilekiln::moe::TopkSoftmax;

constexpr int kKept = 16;  // logits of a lane

struct Best {
  float key;
  int index;
};
// Orders by key, and of equal ones the first.
TILEKILN_DEVICE bool comes_before(Best a, Best b) { return a.key > b.key || (a.key == b.key && a.index < b.index); }

template <bool kKeeps> TILEKILN_DEVICE void choose(const TopkSoftmax& a, const Element* x, float* weights,
                                                   int* indices) {
  const int lane = threadIdx.x & 31;
  float kept[kKept];
  if constexpr (kKeeps) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) kept[i] = lane + 32 * i < a.experts ? value_of(x[lane + 32 * i]) : -kInfinity;
  }
  const auto each = [&](auto&& f) {
    if constexpr (kKeeps) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        if (lane + 32 * i < a.experts) f(kept[i], lane + 32 * i);
      }
    } else {
      for (int j = lane; j < a.experts; j += 32) f(value_of(x[j]), j);
    }
  };
  // A NaN may be lost here, not in the sum. +infinity, or -infinity alone: the difference is NaN.
  float most = -kInfinity, sum = 0;
  each([&](float v, int) { most = fmaxf(most, v); });
#pragma unroll
  for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
  const auto power = [&](float v) { return exp2_approx((v - most) * kLog2E); };
  each([&](float v, int) { sum += power(v); });
#pragma unroll
  for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
  const bool sound = sum == sum;
  float chosen = 0, by = 1 / sum;
  Best last = {kInfinity, -1};
  for (int k = 0; k < a.topk; ++k) {
    Best best = {-kInfinity, a.experts};
    if (sound) {
      each([&](float v, int j) {
        const Best one = {fmaxf(v, -kLargest), j};
        if (comes_before(last, one) && comes_before(one, best)) best = one;
      });
#pragma unroll
      for (int i = 16; i > 0; i /= 2) {
        const Best other = {__shfl_xor_sync(~0u, best.key, i), __shfl_xor_sync(~0u, best.index, i)};
        if (comes_before(other, best)) best = other;
      }
    } else {
      best.index = k;
    }
    last = best;
    const float weight = sound ? power(value_of(x[best.index])) : sum;
    chosen += weight;
    if (lane == 0) indices[k] = best.index, weights[k] = weight * by;
  }
  if (!a.renormalise) return;
  by = 1 / chosen;
  for (int k = 0; lane == 0 && k < a.topk; ++k) weights[k] = (sound ? power(value_of(x[indices[k]])) : sum) * by;
}

TILEKILN_DEVICE void rows(const TopkSoftmax& a) {
  const long long step = (long long)gridDim.x * (THREADS / 32);
  for (long long m = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; m < a.rows; m += step) {
    const Element* const x = static_cast<const Element*>(a.x) + m * a.x_row;
    float* const weights = a.weights + m * a.weights_row;
    int* const indices = a.indices + m * a.indices_row;
    if (a.experts <= 32 * kKept)
      choose<true>(a, x, weights, indices);
    else
      choose<false>(a, x, weights, indices);
  }
}

}  // namespace tilekiln::cuda::moe

using namespace tilekiln::cuda;

extern "C" __constant__ moe::Build topk_build = {THREADS, kDtype};

extern "C" __global__ void __launch_bounds__(THREADS) topk_rows(const __grid_constant__ tilekiln::moe::TopkSoftmax p) {
  moe::rows(p);
}
