// SPDX-License-Identifier: MIT
// The rows engine of merge for one target.
#include "kernels/backends/cpu/load.h"
#include "kernels/norm/merge/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

template <class T> void rows(const norm::MergeProblem& a, long long first, long long last) {
  constexpr float kNone = -__builtin_inff();
  for (long long row = first; row < last; ++row) {
    const float lse_a = a.lse_a[row * a.a_step], lse_b = a.lse_b[row * a.b_step];
    const float most = lse_a > lse_b || lse_a != lse_a ? lse_a : lse_b;
    // A part without keys has weight 0, and so have two.
    const float by_a = lse_a == kNone ? 0.f : __builtin_expf(lse_a - most);
    const float by_b = lse_b == kNone ? 0.f : __builtin_expf(lse_b - most);
    const float sum = by_a + by_b, scale = sum == 0 ? 0.f : 1 / sum;
    if (a.lse) a.lse[row * a.lse_step] = sum == 0 ? kNone : most + __builtin_logf(sum);
    const vf weight_a = broadcast(by_a * scale), weight_b = broadcast(by_b * scale);
    const T *x = (const T*)a.out_a + row * a.a_row, *y = (const T*)a.out_b + row * a.b_row;
    T* to = (T*)a.out + row * a.out_row;
    for (int i = 0; i < a.columns; i += kLanes) {
      const int left = a.columns - i;
      const vf of_a = lse_a == kNone ? zero() : mul(widen_some(x + i, left), weight_a);
      narrow_some(to + i, lse_b == kNone ? of_a : fma(widen_some(y + i, left), weight_b, of_a), left);
    }
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _merge_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::MergeEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
