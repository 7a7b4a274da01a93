// 4 storage elements <-> 4 fp32 lanes, by the scalar conversions. No alignment is assumed.
#pragma once

#include "kernels/backends/cpu/generic/vector.h"
#include "kernels/backends/numbers.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using core::bf16;
using core::bf8;
using core::fp16;
using core::fp8;

template <class T> TILEKILN_INLINE vf widen(const T* p) {
  vf r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = core::widen(p[i]);
  return r;
}
// The first 2 elements, twice.
template <class T> TILEKILN_INLINE vf widen_twice(const T* p) {
  const float a = core::widen(p[0]), b = core::widen(p[1]);
  return {float4{a, b, a, b}};
}
template <class T> TILEKILN_INLINE void narrow(T* p, vf a) {
  for (int i = 0; i < kLanes; ++i) core::narrow(a.v[i], p[i]);
}
TILEKILN_INLINE void narrow(signed char* p, vf a) {  // saturated
  for (int i = 0; i < kLanes; ++i) {
    const float x = __builtin_rintf(a.v[i]);
    p[i] = (signed char)(x > 127 ? 127 : x >= -128 ? x : -128);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
