// SPDX-License-Identifier: MIT
// Rows of the cross entropy and of its gradient. With s = logit_scale x, lse = log(sum(exp(s))) and l the label:
//   loss = lse - on s[l] - off sum(s) + lse_square_scale lse^2
//   dx = dloss logit_scale (exp(s - lse) (1 + 2 lse_square_scale lse) - off - on [j = l])
#pragma once

#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/twos.h"
#include "kernels/norm/cross_entropy.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr float kLog2e = 1.44269504f;
constexpr int kTogether = 2048;  // classes whose maximum is found before their exponentials are summed: they lie in L1

// The label of a row: ignored, or a class of these logits, or -1, that of none.
struct Label {
  bool ignored;
  long long place;
};
TILEKILN_INLINE Label label_of(const norm::CrossEntropy& a, long long m) {
  const long long label = a.label_bytes == 8 ? ((const long long*)a.labels)[m] : ((const int*)a.labels)[m];
  const bool here = label >= a.first_class && label - a.first_class < a.columns;
  return {label == a.ignore_index, here ? label - a.first_class : -1};
}

TILEKILN_INLINE Two exponentials(Two s, vf less) {
  const Two d = mul(sub(s, less), broadcast(kLog2e));
  return {exp2<5>(d.a), exp2<5>(d.b)};
}

// log(sum(exp(s))) of a row, read once: each part's sum is of exponentials less the greatest so far.
template <class T> TILEKILN_INLINE float log_sum(const T* x, int classes, float logit_scale) {
  const vf scale = broadcast(logit_scale), lowest = broadcast(-__builtin_inff());
  float greatest = -__builtin_inff(), all = 0;
  for (int begin = 0; begin < classes; begin += kTogether) {
    const int count = classes - begin < kTogether ? classes - begin : kTogether;
    const auto value = [&](int j, int left) __attribute__((always_inline)) {
      return existing<T>(left, mul(widen_two<T>(x + begin + j, left), scale), lowest);
    };
    Two top[2] = {both_of(lowest), both_of(lowest)}, sum[2] = {both_of(zero()), both_of(zero())};
    twos(count, [&](int j, int i, int left) __attribute__((always_inline)) { top[i] = max(top[i], value(j, left)); });
    // A NaN may be lost here, not in the sum.
    const Two either = max(top[0], top[1]);
    const float here = highest(max(either.a, either.b));
    const float before = greatest;
    greatest = here > greatest ? here : greatest;
    if (greatest == -__builtin_inff()) {  // nothing but -inf, or NaN that the maximum has lost
      Two some = both_of(zero());
      twos(count, [&](int j, int, int left) __attribute__((always_inline)) {
        some = add(some, existing<T>(left, widen_two<T>(x + begin + j, left), zero()));
      });
      const float either_sum = total(add(some.a, some.b));
      if (either_sum != either_sum) return either_sum;
      continue;
    }
    const vf less = broadcast(greatest);
    twos(count, [&](int j, int i, int left)
                    __attribute__((always_inline)) { sum[i] = add(sum[i], exponentials(value(j, left), less)); });
    const Two both = add(sum[0], sum[1]);
    all = (before == greatest || all == 0 ? all : all * __builtin_expf(before - greatest)) + total(add(both.a, both.b));
  }
  return greatest + __builtin_logf(all);
}

template <class T> TILEKILN_INLINE float element(const T* x, long long at) {
  float lanes[kLanes];
  T one[kLanes] = {};
  one[0] = x[at];
  store_unaligned(lanes, widen(one));
  return lanes[0];
}

template <class T> void cross_entropy_rows(const norm::CrossEntropy& a, long long first, long long last) {
  for (long long m = first; m < last; ++m) {
    const Label label = label_of(a, m);
    const T* x = (const T*)a.logits + m * a.logits_row;
    float loss = 0, lse = 0;
    if (!label.ignored) {
      lse = a.given_lse ? a.given_lse[m] : log_sum(x, a.columns, a.logit_scale);
      loss = lse + a.lse_square_scale * lse * lse;
      if (label.place >= 0) loss -= a.on * (a.logit_scale * element(x, label.place));
      if (a.off != 0) {
        Two sum[2] = {both_of(zero()), both_of(zero())};
        twos(a.columns, [&](int j, int i, int left) __attribute__((always_inline)) {
          sum[i] = add(sum[i], existing<T>(left, widen_two<T>(x + j, left), zero()));
        });
        const Two all = add(sum[0], sum[1]);
        loss -= a.off * (a.logit_scale * total(add(all.a, all.b)));
      }
    }
    a.loss[m] = loss;
    if (a.lse) a.lse[m] = lse;
  }
}

template <class T> void cross_entropy_gradients(const norm::CrossEntropy& a, long long first, long long last) {
  const vf scale = broadcast(a.logit_scale), off = broadcast(a.off);
  for (long long m = first; m < last; ++m) {
    const Label label = label_of(a, m);
    const T* x = (const T*)a.logits + m * a.logits_row;
    T* dx = (T*)a.dlogits + m * a.dlogits_row;
    if (label.ignored) {
      __builtin_memset(dx, 0, sizeof(T) * a.columns);
      continue;
    }
    const vf lse = broadcast(a.given_lse[m]), by = broadcast(1 + 2 * a.lse_square_scale * a.given_lse[m]);
    const vf weight = broadcast(a.dloss[m] * a.logit_scale);
    const auto gradient = [&](Two v, vf less) __attribute__((always_inline)) {
      const Two e = mul(exponentials(mul(v, scale), lse), by);
      return mul(sub(e, less), weight);
    };
    // Gradient of the label's own column, taken before its row is written, which may be its own memory.
    T own[1] = {};
    if (label.place >= 0) narrow_two<T>(own, gradient(widen_two<T>(x + label.place, 1), broadcast(a.off + a.on)), 1);
    twos(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      narrow_two<T>(dx + j, gradient(widen_two<T>(x + j, left), off), left);
    });
    if (label.place >= 0) dx[label.place] = own[0];
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
