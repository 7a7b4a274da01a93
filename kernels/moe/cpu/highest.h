// SPDX-License-Identifier: MIT
// The first of the largest of a row of keys, taken out one by one.
#pragma once

#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/vectors.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr float kLowest = -3.40282347e38f;  // of a key; -inf is what was taken

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

// exp(x - the largest) of a row, to `to`; the sum, which is NaN where the row holds a NaN or +inf, or nothing but -inf. each(j, x, left):
// of every vector of the row as it is read, of `left` lanes.
template <class T, class Each> TILEKILN_INLINE float exponentials(const T* x, int columns, float* to, Each&& each) {
  const vf lowest = broadcast(-__builtin_inff()), log2e = broadcast(1.44269504f);
  vf top = lowest, sum[4] = {zero(), zero(), zero(), zero()};
  vectors(columns, [&](int j, int, int left) __attribute__((always_inline)) {
    const vf v = widen_some(x + j, left);
    const vf here = left >= kLanes ? v : select(lane_bits((1u << left) - 1), v, lowest);
    top = max(top, here);
    store(to + j, here);
    each(j, v, left);
  });
  // A NaN may be lost here, not in the sum. +inf, or -inf alone: the difference is NaN.
  const vf maximum = broadcast(highest(top));
  vectors(columns, [&](int j, int i, int) __attribute__((always_inline)) {
    const vf e = exp2<5>(mul(sub(load(to + j), maximum), log2e));
    sum[i] = add(sum[i], e);
    store(to + j, e);
  });
  return total(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
}

// v as a key, of `left` lanes: at least kLowest, -inf past the row.
TILEKILN_INLINE vf as_key(vf v, int left) {
  const vf above = max(broadcast(kLowest), v);
  return left >= kLanes ? above : select(lane_bits((1u << left) - 1), above, broadcast(-__builtin_inff()));
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
