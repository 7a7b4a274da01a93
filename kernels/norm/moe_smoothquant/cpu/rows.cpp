// SPDX-License-Identifier: MIT
// The rows engine of moe_smoothquant for one target.
#include "kernels/norm/cpu/quantise.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

template <class T> void rows(const norm::Problem& a, long long first, long long last) {
  for (long long m = first; m < last; ++m) {
    const long long choice = m / a.tokens, token = m % a.tokens;
    const int expert = a.topk_ids[token * a.topk_ids_row + choice];
    char* y = (char*)a.y + choice * a.y_choice + token * a.y_row;
    float& scale = a.y_scale[choice * a.y_scale_choice + token];
    if (expert < 0 || expert >= a.experts) {
      __builtin_memset(y, 0, a.columns);
      scale = 0;
      continue;
    }
    const T* x = (const T*)a.x + token * a.x_row;
    const float* factors = a.smooth_scale + expert * a.smooth_scale_row;
    scale = quantise_row<T>(a.columns, y, a.y_dtype, [&](int j, int left) __attribute__((always_inline)) {
      return mul(widen_two<T>(x + j, left), widen_two<T>(factors + j, left));
    });
  }
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _moe_smoothquant_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
