// SPDX-License-Identifier: MIT
// Elements of 2 or 4 bytes in vectors of 16: how they are read, widened to fp32, narrowed and written.
// -D: TILEKILN_FP16, TILEKILN_FP32; else bf16.
#pragma once

#include "kernels/backends/words.h"

namespace tilekiln::cuda {

#ifdef TILEKILN_FP32
using Element = float;
constexpr int kDtype = 0;
#else
using Element = uint16_t;
#ifdef TILEKILN_FP16
constexpr int kDtype = 1;
#else
constexpr int kDtype = 2;
#endif
#endif
constexpr int kWide = 16 / sizeof(Element);  // elements of a vector

// One element.
TILEKILN_DEVICE float value_of(float x) { return x; }
TILEKILN_DEVICE float value_of(uint16_t x) { return element(x); }
TILEKILN_DEVICE Element narrowed(float x) {
  if constexpr (kDtype == 0)
    return x;
  else
    return Element(pack(x, 0.f));
}

TILEKILN_DEVICE void widen(uint4 words, float (&v)[kWide]) {
#ifdef TILEKILN_FP32
  v[0] = __uint_as_float(words.x), v[1] = __uint_as_float(words.y);
  v[2] = __uint_as_float(words.z), v[3] = __uint_as_float(words.w);
#else
  unpack(words.x, v[0], v[1]), unpack(words.y, v[2], v[3]);
  unpack(words.z, v[4], v[5]), unpack(words.w, v[6], v[7]);
#endif
}
TILEKILN_DEVICE uint4 narrow(const float (&v)[kWide]) {
#ifdef TILEKILN_FP32
  return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
#else
  return make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
#endif
}
TILEKILN_DEVICE float rounded(float x) {
#ifdef TILEKILN_FP32
  return x;
#else
  return element(uint16_t(pack(x, 0.f)));
#endif
}

// Bytes [0, bytes) of a vector, which is whole where `wide`; the rest are 0, or are left alone.
TILEKILN_DEVICE uint4 load_vector(const void* from, int bytes, bool wide) {
  if (wide && bytes >= 16) return *static_cast<const uint4*>(from);
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i * int(sizeof(Element)) >= bytes) continue;
#ifdef TILEKILN_FP32
    words[i] = static_cast<const uint32_t*>(from)[i];
#else
    words[i / 2] |= uint32_t(static_cast<const uint16_t*>(from)[i]) << (i % 2 * 16);
#endif
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}
TILEKILN_DEVICE void store_vector(void* to, uint4 vector, int bytes, bool wide) {
  if (wide && bytes >= 16) {
    *static_cast<uint4*>(to) = vector;
    return;
  }
  const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    if (i * int(sizeof(Element)) >= bytes) continue;
#ifdef TILEKILN_FP32
    static_cast<uint32_t*>(to)[i] = words[i];
#else
    static_cast<uint16_t*>(to)[i] = uint16_t(words[i / 2] >> (i % 2 * 16));
#endif
  }
}

}  // namespace tilekiln::cuda
