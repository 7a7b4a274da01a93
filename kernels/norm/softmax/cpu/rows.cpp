// SPDX-License-Identifier: MIT
// The rows engine of softmax for one target. Lanes run along a row; four vectors of maxima and of sums, joined at its end.
#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/twos.h"
#include "kernels/norm/softmax/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr int kKept = 8192;  // exponentials of a row: 1.4 times as fast as making them twice, in 32 KB

template <class T, bool kStreaming>
void walk(const norm::SoftmaxProblem& a, long long first, long long last) {
  constexpr bool kWide = sizeof(T) == sizeof(float) && !kStreaming;  // y itself holds the exponentials
  alignas(64) float kept[kWide ? 1 : kKept];
  const bool keep = kWide || a.columns <= kKept;
  const vf lowest = broadcast(-__builtin_inff()), log2e = broadcast(kLog2e);
  for (long long m = first; m < last; ++m) {
    const T* x = (const T*)a.x + m * a.x_row;
    T* y = (T*)a.y + m * a.y_row;
    // Elements of the next row: exponentials leave memory idle.
    const T* ahead = a.fetch_ahead && m + 1 < a.rows ? x + a.x_row : nullptr;
    const auto value = [&](int j, int left) __attribute__((always_inline)) {
      return existing<T>(left, widen_two<T>(x + j, left), lowest);
    };
    Two top[2] = {both_of(lowest), both_of(lowest)}, sum[2] = {both_of(zero()), both_of(zero())};
    twos(a.columns,
         [&](int j, int i, int left) __attribute__((always_inline)) { top[i] = max(top[i], value(j, left)); });
    // A NaN may be lost here, not in the sum. +inf, or -inf alone: the difference is NaN.
    const Two highest_two = max(top[0], top[1]);
    const vf maximum = broadcast(highest(max(highest_two.a, highest_two.b)));
    const auto power = [&](int j, int left) __attribute__((always_inline)) {
      const Two d = mul(sub(value(j, left), maximum), log2e);
      return Two{exp2<5>(d.a), exp2<5>(d.b)};
    };
    twos(a.columns, [&](int j, int i, int left) __attribute__((always_inline)) {
      const Two e = power(j, left);
      if (ahead) prefetch_two(ahead + j);
      sum[i] = add(sum[i], e);
      if constexpr (kWide) {
        narrow_two<T>(y + j, e, left);
      } else if (keep) {
        store(kept + j, e.a);
        store(kept + j + kLanes, e.b);
      }
    });
    const Two all = add(sum[0], sum[1]);
    const vf by = broadcast(1 / total(add(all.a, all.b)));
    const auto scale = [&](auto&& exponential) __attribute__((always_inline)) {
      twos(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
        const Two v = mul(exponential(j, left), by);
        kStreaming ? stream_two<T>(y + j, v) : narrow_two<T>(y + j, v, left);
      });
    };
    if constexpr (kWide) {
      scale([&](int j, int left) __attribute__((always_inline)) { return widen_two<T>(y + j, left); });
    } else if (keep) {
      scale([&](int j, int) __attribute__((always_inline)) { return Two{load(kept + j), load(kept + j + kLanes)}; });
    } else {
      scale(power);
    }
  }
  if constexpr (kStreaming) stream_end();
}
template <class T> void rows(const norm::SoftmaxProblem& a, long long first, long long last) {
  (a.streaming && a.columns <= kKept ? walk<T, true> : walk<T, false>)(a, first, last);
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _softmax_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::SoftmaxEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
