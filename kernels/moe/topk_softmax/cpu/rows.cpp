// SPDX-License-Identifier: MIT
// The rows engine of topk_softmax for one target. Lanes run along a row.
#include "kernels/moe/cpu/highest.h"
#include "kernels/moe/topk_softmax/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

template <class T> void rows(const moe::TopkSoftmax& a, long long first, long long last, float* scratch) {
  const int whole = (a.experts + 63) / 64 * 64, vectors_of_keys = (a.experts + kLanes - 1) / kLanes;
  float *keys = scratch, *numbers = scratch + whole, *tops = scratch + 2 * whole;
  for (int i = 0; i < vectors_of_keys; i += kLanes) store(tops + i, broadcast(-__builtin_inff()));
  for (long long m = first; m < last; ++m) {
    const T* x = (const T*)a.x + m * a.x_row;
    float* weights = a.weights + m * a.weights_row;
    int* indices = a.indices + m * a.indices_row;
    const float all = exponentials(x, a.experts, numbers, [&](int j, vf v, int left) __attribute__((always_inline)) {
      const vf key = as_key(v, left);
      store(keys + j, key);
      tops[j / kLanes] = highest(key);
    });
    float chosen = 0;
    for (int i = 0; i < a.topk; ++i) {
      indices[i] = all == all ? take_highest(keys, tops, vectors_of_keys) : i;
      weights[i] = all == all ? numbers[indices[i]] : all;
      chosen += weights[i];
    }
    const float by = 1 / (a.renormalise ? chosen : all);
    for (int i = 0; i < a.topk; ++i) weights[i] *= by;
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _topk_softmax_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::moe::TopkSoftmaxEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
