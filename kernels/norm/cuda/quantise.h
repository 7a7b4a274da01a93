// SPDX-License-Identifier: MIT
// Rows as bytes: int8 or e4m3, each row by a scale of its own.
#pragma once

#include "kernels/backends/cuda/vectors.h"

namespace tilekiln::cuda::norm {

constexpr float kLeast = 0x1p-100f;  // what is less everywhere counts as 0: its scale would leave fp32's normal numbers

#if __CUDA_ARCH__ < 900
// A finite number as e4m3, rounded to nearest even; beyond 448 it is 448. sm_90 has an instruction for it (pack_e4m3).
TILEKILN_DEVICE uint32_t e4m3(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  const float magnitude = fminf(__uint_as_float(bits & 0x7fffffffu), 448.f);
  if (magnitude < 0x1p-6f)  // steps of 2^-9: the last place of numbers from 2^14 on
    return sign | (__float_as_uint(magnitude + 0x1p14f) - __float_as_uint(0x1p14f));
  const uint32_t whole = __float_as_uint(magnitude);
  return sign | (((whole + 0x7ffffu + (whole >> 20 & 1)) >> 20) - (120 << 3));
}
#endif

// Four bytes of numbers of at most `largest`: int8 by the low byte of a sum whose last place is 1, rounded to nearest
// even.
TILEKILN_DEVICE uint32_t quantised(const float* v, float by, bool fp8) {
  if (fp8) {
#if __CUDA_ARCH__ < 900
    uint32_t four = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) four |= e4m3(v[i] * by) << (8 * i);
    return four;
#else
    return pack_e4m3(v[0] * by, v[1] * by, v[2] * by, v[3] * by);
#endif
  }
  uint32_t bits[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(fmaf(v[i], by, 12582912.f));
  return __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
}

// kWide elements of a byte, at a multiple of as many bytes.
TILEKILN_DEVICE void store_bytes(void* to, const uint32_t (&words)[kWide / 4]) {
#ifdef TILEKILN_FP32
  *static_cast<uint32_t*>(to) = words[0];
#else
  *static_cast<uint2*>(to) = make_uint2(words[0], words[1]);
#endif
}
// Stores as many bytes as there are, anywhere.
TILEKILN_DEVICE void store_bytes(void* to, const uint32_t (&words)[kWide / 4], int count) {
  if (count >= kWide && reinterpret_cast<uintptr_t>(to) % kWide == 0) return store_bytes(to, words);
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i < count) static_cast<uint8_t*>(to)[i] = uint8_t(words[i / 4] >> (i % 4 * 8));
  }
}

// The scale of a quantised row. A row that is 0 everywhere, or has a NaN, gets bytes of 0 and a scale of 0, or NaN.
struct Scale {
  float by, scale;
  bool some;
};
TILEKILN_DEVICE Scale scale_of(float most, bool fp8) {
  const float largest = fp8 ? 448.f : 127.f;
  const bool finite = most < kInfinity, some = finite && most >= kLeast;
  return {some ? largest / most : 0.f, some ? most / largest : finite ? 0.f : __uint_as_float(0x7fc00000u), some};
}

}  // namespace tilekiln::cuda::norm
