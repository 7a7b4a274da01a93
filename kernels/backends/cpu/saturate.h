// SPDX-License-Identifier: MIT
// fp8 results: scaled numbers that a static scale has brought near e4m3's range, so they saturate at its ends instead of
// becoming NaN. Rounded to nearest even; NaN stays NaN.
#pragma once

#include "kernels/backends/cpu/load.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

struct saturated_fp8 { fp8 value; };

TILEKILN_INLINE void narrow(saturated_fp8* p, vf a) {
  constexpr float kLargest = 448.f;
  alignas(64) float x[kLanes];
  store(x, max(broadcast(-kLargest), min(broadcast(kLargest), a)));
  for (int i = 0; i < kLanes; ++i) core::narrow(x[i], p[i].value);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
