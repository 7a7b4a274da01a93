// The rows engine of topk_softmax for one target. Lanes run along a row.
#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/vectors.h"
#include "kernels/moe/topk_softmax/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

constexpr float kLowest = -3.40282347e38f;

// The next number below a finite one.
TILEKILN_INLINE float below(float x) {
  int bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits = x > 0 ? bits - 1 : x < 0 ? bits + 1 : int(0x80000001);
  __builtin_memcpy(&x, &bits, sizeof bits);
  return x;
}

// Takes the first of the largest of `count` keys, which end with -inf up to a whole vector, and puts -inf in its place.
TILEKILN_INLINE int take_highest(float* keys, int count) {
  vf top[4];
  for (vf& one : top) one = broadcast(-__builtin_inff());
  vectors(count, [&](int j, int i, int) __attribute__((always_inline)) { top[i] = max(top[i], load(keys + j)); });
  const float highest_key = highest(max(max(top[0], top[1]), max(top[2], top[3])));
  const vf under = broadcast(below(highest_key));
  int j = 0;
  while (j + kLanes < count && !any_above(load(keys + j), under)) j += kLanes;
  while (keys[j] != highest_key) ++j;
  keys[j] = -__builtin_inff();
  return j;
}

template <class T> void rows(const moe::TopkSoftmax& a, long long first, long long last, float* scratch) {
  float *keys = scratch, *exponentials = scratch + (a.experts + 63) / 64 * 64;
  const vf lowest = broadcast(-__builtin_inff()), log2e = broadcast(1.44269504f);
  for (long long m = first; m < last; ++m) {
    const T* x = (const T*)a.x + m * a.x_row;
    float* weights = a.weights + m * a.weights_row;
    int* indices = a.indices + m * a.indices_row;
    vf top = lowest, sum[4] = {zero(), zero(), zero(), zero()};
    vectors(a.experts, [&](int j, int, int left) __attribute__((always_inline)) {
      const vf v = widen_some(x + j, left);
      const vf here = left >= kLanes ? v : select(lane_bits((1u << left) - 1), v, lowest);
      top = max(top, here);
      store(exponentials + j, here);
      const vf key = max(broadcast(kLowest), v);
      store(keys + j, left >= kLanes ? key : select(lane_bits((1u << left) - 1), key, lowest));
    });
    // A NaN may be lost here, not in the sum. +inf, or -inf alone: the difference is NaN.
    const vf maximum = broadcast(highest(top));
    vectors(a.experts, [&](int j, int i, int) __attribute__((always_inline)) {
      const vf e = exp2<5>(mul(sub(load(exponentials + j), maximum), log2e));
      sum[i] = add(sum[i], e);
      store(exponentials + j, e);
    });
    const float all = total(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
    float chosen = 0;
    for (int i = 0; i < a.topk; ++i) {
      indices[i] = all == all ? take_highest(keys, a.experts) : i;
      weights[i] = all == all ? exponentials[indices[i]] : all;
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

// By dtype: fp32, fp16, bf16.
extern "C" const tilekiln::moe::TopkSoftmaxEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
