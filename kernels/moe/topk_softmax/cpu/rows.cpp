// The rows engine of topk_softmax for one target. Lanes run along a row.
#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/vectors.h"
#include "kernels/moe/topk_softmax/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

constexpr float kLowest = -3.40282347e38f;

// Takes the first of the largest keys, and puts -inf in its place. tops: the highest key of each of so many vectors of them, which end
// with -inf up to a whole vector.
TILEKILN_INLINE int take_highest(float* keys, float* tops, int vectors) {
  vf top = load(tops);
  for (int i = kLanes; i < vectors; i += kLanes) top = max(top, load(tops + i));
  const vf sought = broadcast(highest(top)), lowest = broadcast(-__builtin_inff());
  int group = 0;
  while (!equal(load(tops + group), sought)) group += kLanes;
  const int vector = __builtin_ctz(equal(load(tops + group), sought));
  float* const found = keys + (group + vector) * kLanes;
  const int lane = __builtin_ctz(equal(load(found), sought));
  const vf rest = select(lane_bits(1u << lane), lowest, load(found));
  store(found, rest);
  store(tops + group, select(lane_bits(1u << vector), broadcast(highest(rest)), load(tops + group)));
  return (group + vector) * kLanes + lane;
}

template <class T> void rows(const moe::TopkSoftmax& a, long long first, long long last, float* scratch) {
  const int whole = (a.experts + 63) / 64 * 64, vectors_of_keys = (a.experts + kLanes - 1) / kLanes;
  float *keys = scratch, *exponentials = scratch + whole, *tops = scratch + 2 * whole;
  const vf lowest = broadcast(-__builtin_inff()), log2e = broadcast(1.44269504f);
  for (int i = 0; i < vectors_of_keys; i += kLanes) store(tops + i, lowest);
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
      const vf above = max(broadcast(kLowest), v);
      const vf key = left >= kLanes ? above : select(lane_bits((1u << left) - 1), above, lowest);
      store(keys + j, key);
      tops[j / kLanes] = highest(key);
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
      indices[i] = all == all ? take_highest(keys, tops, vectors_of_keys) : i;
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
