// SPDX-License-Identifier: MIT
// 4 storage elements <-> 4 fp32 lanes. Narrowing rounds to nearest even. No alignment is assumed.
#pragma once

#include "kernels/backends/cpu/neon/vector.h"
#include "kernels/backends/numbers.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using core::bf16;
using core::bf8;
using core::fp16;
using core::fp8;

TILEKILN_INLINE uint8x8_t load_4_bytes(const void* p) {
  return vreinterpret_u8_u32(vdup_n_u32(*(const unaligned_word*)p));
}
TILEKILN_INLINE uint16x4_t widen_4_bytes(const void* p) { return vget_low_u16(vmovl_u8(load_4_bytes(p))); }

TILEKILN_INLINE vf widen(const float* p) { return load_unaligned(p); }
TILEKILN_INLINE vf widen_fp16(uint16x4_t x) { return {vcvt_f32_f16(vreinterpret_f16_u16(x))}; }
TILEKILN_INLINE vf widen(const fp16* p) { return widen_fp16(vld1_u16((const uint16_t*)p)); }
TILEKILN_INLINE vf widen(const bf16* p) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t*)p), 16))};
}
// e4m3: the fields under an fp32 exponent, times 2^120. 0x7f is NaN.
TILEKILN_INLINE vf widen_fp8(uint16x4_t bytes) {
  const uint32x4_t x = vmovl_u16(bytes), magnitude = vandq_u32(x, vdupq_n_u32(0x7f));
  const uint32x4_t sign = vshlq_n_u32(vandq_u32(x, vdupq_n_u32(0x80)), 24);
  const float32x4_t f = vmulq_n_f32(vreinterpretq_f32_u32(vshlq_n_u32(magnitude, 20)), 0x1p120f);
  const uint32x4_t nan = vceqq_u32(magnitude, vdupq_n_u32(0x7f));
  return {vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(vreinterpretq_u32_f32(f), nan), sign))};
}
// e5m2 is the upper byte of fp16.
TILEKILN_INLINE vf widen(const bf8* p) { return widen_fp16(vshl_n_u16(widen_4_bytes(p), 8)); }
TILEKILN_INLINE vf widen(const fp8* p) { return widen_fp8(widen_4_bytes(p)); }

TILEKILN_INLINE void narrow(float* p, vf a) { store_unaligned(p, a); }
TILEKILN_INLINE void narrow(fp16* p, vf a) { vst1_u16((uint16_t*)p, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
// Rounded to nearest even: the bits of bf16 stand above those of each lane.
TILEKILN_INLINE uint32x4_t round_bf16(vf a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a.v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  return vbslq_u32(vceqq_f32(a.v, a.v), rounded, vorrq_u32(bits, vdupq_n_u32(0x400000)));
}
TILEKILN_INLINE uint16x4_t narrow_bf16(vf a) {
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
  return vreinterpret_u16_bf16(vcvt_bf16_f32(a.v));
#else
  return vshrn_n_u32(round_bf16(a), 16);
#endif
}
TILEKILN_INLINE void narrow(bf16* p, vf a) { vst1_u16((uint16_t*)p, narrow_bf16(a)); }

TILEKILN_INLINE void narrow(signed char* p, vf a) {  // saturated; NaN is -128, as it is to other ISAs
  const int16x4_t halves = vqmovn_s32(vcvtnq_s32_f32(vmaxnmq_f32(a.v, vdupq_n_f32(-128.f))));
  const int8x8_t bytes = vqmovn_s16(vcombine_s16(halves, halves));
  *(unaligned_word*)p = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
