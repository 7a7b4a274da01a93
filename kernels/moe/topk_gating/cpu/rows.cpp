// SPDX-License-Identifier: MIT
// The rows engine of topk_gating for one target. Lanes run along a row.
#include "kernels/backends/cpu/sigmoid.h"
#include "kernels/moe/cpu/highest.h"
#include "kernels/moe/topk_gating/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// log(1 + exp(x)) = max(x, 0) + log(1 + e), e = exp(-|x|) in [0, 1]: 2 atanh(s) with s = e / (2 + e), at most 1/3. The series is cut
// where its rest is below 2e-9 of it. NaN and infinities stay.
TILEKILN_INLINE vf softplus(vf x) {
  const vf e = exp2<5>(mul(abs(x), broadcast(-1.44269504f)));
  const vf s = mul(e, reciprocal(add(broadcast(2.f), e))), s2 = mul(s, s);
  vf y = broadcast(1.f / 17);
  TILEKILN_UNROLL(8) for (int i = 15; i > 0; i -= 2) y = fma(y, s2, broadcast(1.f / float(i)));
  return fma(add(s, s), y, max(zero(), x));
}

// A score of each logit by a function of it alone, to `to`, 0 past the row; 1, or NaN where one is NaN or infinite.
template <class T, class F> TILEKILN_INLINE float each_score(const T* x, int columns, float* to, F&& score) {
  vf none[4] = {zero(), zero(), zero(), zero()};
  vectors(columns, [&](int j, int i, int left) __attribute__((always_inline)) {
    const vf s = score(widen_some(x + j, left));
    const vf here = left >= kLanes ? s : keep_if(lane_bits((1u << left) - 1), s);
    none[i] = add(none[i], sub(here, here));
    store(to + j, here);
  });
  return 1 + total(add(add(none[0], none[1]), add(none[2], none[3])));
}

// Scores of a row but for a divisor, which is returned: the sum of the exponentials of softmax, else 1; NaN of a row that has no choice.
template <class T> float scores_of(const moe::TopkGating& a, const T* x, float* to) {
  if (a.score == moe::Score::softmax)
    return exponentials(x, a.experts, to, [](int, vf, int) __attribute__((always_inline)) {});
  if (a.score == moe::Score::sigmoid)
    return each_score(x, a.experts, to, [](vf v) __attribute__((always_inline)) { return sigmoid(v); });
  const float divisor = each_score(x, a.experts, to, [](vf v) __attribute__((always_inline)) { return softplus(v); });
  for (int j = 0; j < a.experts; ++j) to[j] = __builtin_sqrtf(to[j]);
  return divisor;
}

// The two highest keys of a group as one number, or the highest.
TILEKILN_INLINE float group_key(const float* keys, int size, bool of_two) {
  const vf lowest = broadcast(-__builtin_inff());
  vf top = lowest, second = lowest;
  for (int j = 0; j < size; j += kLanes) {
    const vf v = load_unaligned(keys + j);
    const vf here = size - j >= kLanes ? v : select(lane_bits((1u << (size - j)) - 1), v, lowest);
    second = max(second, min(top, here));
    top = max(top, here);
  }
  const float most = highest(top);
  if (!of_two || size == 1) return most;
  const vf rest = select(lane_bits(1u << __builtin_ctz(equal(top, broadcast(most)))), second, top);
  const float next = highest(max(rest, second)), sum = most + next;
  return sum < kLowest ? kLowest : sum;
}

// Puts -inf in place of all keys but those of the best groups. of_groups, tops: memory for a number a group, and one a vector of these.
void keep_best_groups(const moe::TopkGating& a, float* keys, float* of_groups, float* tops) {
  const int size = a.experts / a.groups, whole = (a.groups + kLanes - 1) / kLanes * kLanes;
  const float lowest = -__builtin_inff();
  for (int g = 0; g < whole; ++g)
    of_groups[g] = g < a.groups ? group_key(keys + g * size, size, a.group_of_two) : lowest;
  const int vectors_of_groups = whole / kLanes;
  for (int i = 0; i < (vectors_of_groups + kLanes - 1) / kLanes * kLanes; ++i)
    tops[i] = i < vectors_of_groups ? highest(load(of_groups + i * kLanes)) : lowest;
  for (int i = 0; i < a.topk_groups; ++i) take_highest(of_groups, tops, vectors_of_groups);
  for (int g = 0; g < a.groups; ++g) {
    if (of_groups[g] == lowest) continue;  // it was taken
    for (int j = 0; j < size; ++j) keys[g * size + j] = lowest;
  }
}

template <class T> void rows(const moe::TopkGating& a, long long first, long long last, float* scratch) {
  const int whole = (a.experts + 63) / 64 * 64, vectors_of_keys = (a.experts + kLanes - 1) / kLanes;
  float *keys = scratch, *scores = scratch + whole, *tops = scratch + 2 * whole;
  float *tops_of_groups = tops + whole / 2, *of_groups = scratch + 3 * whole;  // a vector has 4 lanes at least
  for (int i = 0; i < vectors_of_keys; i += kLanes) store(tops + i, broadcast(-__builtin_inff()));
  for (long long m = first; m < last; ++m) {
    float* weights = a.weights + m * a.weights_row;
    int* indices = a.indices + m * a.indices_row;
    float all = scores_of(a, (const T*)a.x + m * a.x_row, scores);
    const vf by = broadcast(1 / all);
    bool sound = all == all;
    vectors(a.experts, [&](int j, int, int left) __attribute__((always_inline)) {
      vf key = mul(load(scores + j), by);
      if (a.bias) key = add(key, widen_some(a.bias + j, left));
      sound &= equal(key, key) == lane_bits((1u << kLanes) - 1);
      store(keys + j, as_key(key, left));
    });
    if (!sound) all = __builtin_nanf("");
    if (sound && a.groups > a.topk_groups) keep_best_groups(a, keys, of_groups, tops_of_groups);
    for (int i = 0; i < vectors_of_keys; ++i) tops[i] = highest(load(keys + i * kLanes));
    float chosen = 0;
    for (int i = 0; i < a.topk; ++i) {
      indices[i] = sound ? take_highest(keys, tops, vectors_of_keys) : i;
      weights[i] = sound ? scores[indices[i]] : all;
      chosen += weights[i];
    }
    const float factor = a.renormalise ? a.scaling / (chosen / all + 1e-20f) / all : a.scaling / all;
    for (int i = 0; i < a.topk; ++i) weights[i] *= factor;
    for (int i = 0; i < a.shared; ++i) {
      indices[a.topk + i] = a.experts + i;
      weights[a.topk + i] = a.shared_weight;
    }
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _topk_gating_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::moe::TopkGatingEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
