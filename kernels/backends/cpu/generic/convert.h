// SPDX-License-Identifier: MIT
// 4 storage elements <-> 4 fp32 lanes, by the scalar conversions. No alignment is assumed.
#pragma once

#include "kernels/backends/cpu/generic/vector.h"
#include "kernels/backends/numbers.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using core::bf16;
using core::bf8;
using core::fp16;
using core::fp8;

// Functions of their own but for fp32 and bf16: what a conversion takes is 20 to 40 instructions a lane, and inlined into each
// loop of an engine it made the compiler work for a minute and the engine ten times as large.
template <class T> [[gnu::noinline]] vf widen_apart(const T* p) {
  vf r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = core::widen(p[i]);
  return r;
}
template <class T> [[gnu::noinline]] void narrow_apart(T* p, vf a) {
  for (int i = 0; i < kLanes; ++i) core::narrow(a.v[i], p[i]);
}
template <class T> TILEKILN_INLINE vf widen(const T* p) { return widen_apart(p); }
template <class T> TILEKILN_INLINE void narrow(T* p, vf a) { narrow_apart(p, a); }
TILEKILN_INLINE vf widen(const float* p) { return load_unaligned(p); }
TILEKILN_INLINE void narrow(float* p, vf a) { store_unaligned(p, a); }
TILEKILN_INLINE vf widen(const bf16* p) {
  vf r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = core::widen(p[i]);
  return r;
}
TILEKILN_INLINE void narrow(bf16* p, vf a) {  // as core::narrow, without a branch
  typedef uint32_t uint4 __attribute__((vector_size(16)));
  const uint4 bits = (uint4)a.v, rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
  const uint4 is_nan = (uint4)(a.v != a.v), result = (is_nan & quiet) | (~is_nan & rounded);
  typedef uint16_t short4 __attribute__((vector_size(8)));
  const short4 low = __builtin_convertvector(result, short4);
  __builtin_memcpy(p, &low, sizeof low);
}
TILEKILN_INLINE void narrow(signed char* p, vf a) {  // saturated
  for (int i = 0; i < kLanes; ++i) {
    const float x = __builtin_rintf(a.v[i]);
    p[i] = (signed char)(x > 127 ? 127 : x >= -128 ? x : -128);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
