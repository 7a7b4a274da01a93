// SPDX-License-Identifier: MIT
// Results of a byte: scaled numbers that a static scale has brought near the range of e4m3 (fp8) or e5m2 (bf8), so they saturate at its
// ends instead of becoming NaN or infinity. Rounded to nearest even; NaN stays NaN.
#pragma once

#include "kernels/backends/cpu/load.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

struct saturated_fp8 { fp8 value; };
struct saturated_bf8 { bf8 value; };

template <class Byte> TILEKILN_INLINE void narrow_within(float largest, Byte* p, vf a) {
  alignas(64) float x[kLanes];
  store(x, max(broadcast(-largest), min(broadcast(largest), a)));
  for (int i = 0; i < kLanes; ++i) core::narrow(x[i], p[i].value);
}
TILEKILN_INLINE void narrow(saturated_fp8* p, vf a) { narrow_within(448.f, p, a); }
TILEKILN_INLINE void narrow(saturated_bf8* p, vf a) { narrow_within(57344.f, p, a); }

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
