// SPDX-License-Identifier: MIT
// 1 / (1 + exp(-x)), and x times that.
#pragma once

#include "kernels/backends/cpu/exp2.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// 1 / (1 + exp(-x)). Cut where it is 0 or 1 to fp32; NaN stays.
TILEKILN_INLINE vf sigmoid(vf x) {
  const vf y = max(broadcast(-126.f), min(broadcast(126.f), mul(x, broadcast(-1.44269504088896f))));
  return reciprocal(add(broadcast(1.f), exp2<5>(y)));
}
// x before a factor that tends to 0 as x falls: it stops where the product is below 2^-100, so that -inf gives 0 and no NaN.
TILEKILN_INLINE vf not_below(float least, vf x) { return max(broadcast(least), x); }
TILEKILN_INLINE vf silu_argument(vf x) { return not_below(-104.f, x); }
TILEKILN_INLINE vf silu(vf x) { return mul(silu_argument(x), sigmoid(x)); }

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
