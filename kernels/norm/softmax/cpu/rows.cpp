// The rows engine of softmax for one target. Lanes run along a row; four vectors of maxima and of sums, joined at its end.
#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/vectors.h"
#include "kernels/norm/softmax/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr int kKept = 8192;  // exponentials of a row: 1.4 times as fast as making them twice, in 32 KB

template <class T> void rows(const norm::SoftmaxProblem& a, long long first, long long last) {
  constexpr bool kWide = sizeof(T) == sizeof(float);  // y itself holds the exponentials
  alignas(64) float kept[kWide ? 1 : kKept];
  const bool keep = kWide || a.columns <= kKept;
  const vf lowest = broadcast(-__builtin_inff()), log2e = broadcast(kLog2e);
  for (long long m = first; m < last; ++m) {
    const T* x = (const T*)a.x + m * a.x_row;
    T* y = (T*)a.y + m * a.y_row;
    const auto value = [&](int j, int left) __attribute__((always_inline)) {
      const vf v = widen_some(x + j, left);
      return left >= kLanes ? v : select(lane_bits((1u << left) - 1), v, lowest);
    };
    vf top[4] = {lowest, lowest, lowest, lowest}, sum[4] = {zero(), zero(), zero(), zero()};
    vectors(a.columns,
            [&](int j, int i, int left) __attribute__((always_inline)) { top[i] = max(top[i], value(j, left)); });
    // A NaN may be lost here, not in the sum. +inf, or -inf alone: the difference is NaN.
    const vf maximum = broadcast(highest(max(max(top[0], top[1]), max(top[2], top[3]))));
    const auto power = [&](int j, int left)
                           __attribute__((always_inline)) { return exp2<5>(mul(sub(value(j, left), maximum), log2e)); };
    vectors(a.columns, [&](int j, int i, int left) __attribute__((always_inline)) {
      const vf e = power(j, left);
      sum[i] = add(sum[i], e);
      if constexpr (kWide) {
        narrow_some(y + j, e, left);
      } else if (keep) {
        store(kept + j, e);
      }
    });
    const vf by = broadcast(1 / total(add(add(sum[0], sum[1]), add(sum[2], sum[3]))));
    const auto scale = [&](auto&& exponential) __attribute__((always_inline)) {
      vectors(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
        narrow_some(y + j, mul(exponential(j, left), by), left);
      });
    };
    if constexpr (kWide) {
      scale([&](int j, int left) __attribute__((always_inline)) { return widen_some(y + j, left); });
    } else if (keep) {
      scale([&](int j, int) __attribute__((always_inline)) { return load(kept + j); });
    } else {
      scale(power);
    }
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _softmax_rows)

// By dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::SoftmaxEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
