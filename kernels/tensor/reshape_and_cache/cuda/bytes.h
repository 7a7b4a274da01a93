// SPDX-License-Identifier: MIT
// Numbers of fp32 as bytes of a cache: e4m3 (cache 1) or e5m2 (cache 2).
#pragma once

#include "kernels/backends/cuda/vectors.h"

namespace tilekiln::cuda::cache_write {

// A number as e4m3, or where kTwo as e5m2: rounded to nearest even, at most the largest one; NaN stays NaN. Steps of
// subnormal numbers are the last place of fp32 from kFrom on.
template <bool kTwo> TILEKILN_DEVICE uint32_t byte_of(float x) {
  constexpr int kShift = kTwo ? 21 : 20, kBias = kTwo ? 15 : 7;
  constexpr float kLargest = kTwo ? 57344.f : 448.f, kLeast = kTwo ? 0x1p-14f : 0x1p-6f,
                  kFrom = kTwo ? 0x1p7f : 0x1p14f;
  const uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  const float magnitude = __uint_as_float(bits & 0x7fffffffu);
  if (!(magnitude >= 0.f)) return sign | (kTwo ? 0x7eu : 0x7fu);
  if (magnitude < kLeast) return sign | (__float_as_uint(magnitude + kFrom) - __float_as_uint(kFrom));
  const uint32_t whole = __float_as_uint(fminf(magnitude, kLargest));
  return sign |
         (((whole + ((1u << (kShift - 1)) - 1) + (whole >> kShift & 1)) >> kShift) - ((127u - kBias) << (23 - kShift)));
}
TILEKILN_DEVICE uint32_t byte_of(float x, int cache) { return cache == 1 ? byte_of<false>(x) : byte_of<true>(x); }
// Four of them, lowest byte first; sm_90 has an instruction for e4m3.
TILEKILN_DEVICE uint32_t four_of(const float* v, float scale, int cache) {
  float by[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) by[e] = __fdiv_rn(v[e], scale);
#if __CUDA_ARCH__ >= 900
  if (cache == 1) return pack_e4m3(by[0], by[1], by[2], by[3]);
#endif
  uint32_t four = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) four |= byte_of(by[e], cache) << (8 * e);
  return four;
}

}  // namespace tilekiln::cuda::cache_write
