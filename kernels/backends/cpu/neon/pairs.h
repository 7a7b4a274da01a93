// SPDX-License-Identifier: MIT
// bf16 pairs: 8 elements a register, and BFDOT where the machine has it.
#pragma once

#include "kernels/backends/cpu/neon/convert.h"
#include "kernels/backends/cpu/neon/horizontal.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

#ifndef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC

#define TILEKILN_PAIRS 0

#else

#define TILEKILN_PAIRS 1
struct vh { uint16x8_t v; };  // 8 bf16

TILEKILN_INLINE bfloat16x8_t halves_of(float32x4_t a) { return vreinterpretq_bf16_f32(a); }
TILEKILN_INLINE vh halves_in(vf a) { return {vreinterpretq_u16_f32(a.v)}; }

// acc + even a even b + odd a odd b, per lane
TILEKILN_INLINE vf dot_pair(vf acc, vf a, vf b) { return {vbfdotq_f32(acc.v, halves_of(a.v), halves_of(b.v))}; }
TILEKILN_INLINE vf dot_pair(vf acc, vf a, word b) {
  return {vbfdotq_laneq_f32(acc.v, halves_of(a.v), halves_of(b.v), 0)};
}

// The 4 lanes of `low`, then those of `high`, each rounded to nearest even.
TILEKILN_INLINE vh both(vf low, vf high) {
  return {vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low.v), high.v))};
}

// Words (low half[i], high half[i]).
TILEKILN_INLINE vh interleaved(vh a) {
  return {
      vcombine_u16(vzip1_u16(vget_low_u16(a.v), vget_high_u16(a.v)), vzip2_u16(vget_low_u16(a.v), vget_high_u16(a.v)))};
}

TILEKILN_INLINE vf words(vh a) { return {vreinterpretq_f32_u16(a.v)}; }
TILEKILN_INLINE vf pairs_of_ones() {
  uint16x8_t ones = vdupq_n_u16(0x3f80);
  asm("" : "+w"(ones));  // g++ 12 makes a constant of bf16 1 by the instruction for fp16's
  return words({ones});
}

// A word per lane: (even, odd), each rounded to nearest even.
TILEKILN_INLINE vf pair(vf even, vf odd) { return words(interleaved(both(even, odd))); }

// Loads at most 8 elements of which n exist; the rest read as 0. Without n: all of them.
template <class T> TILEKILN_INLINE void first_elements(T (&row)[8], const T* p, int n) {
  __builtin_memset(row, 0, sizeof row);
  if (n > 0) __builtin_memcpy(row, p, n * sizeof(T));
}
TILEKILN_INLINE vh load_halves(const bf16* p) { return {vld1q_u16((const uint16_t*)p)}; }
// e4m3 -> bf16 is exact, by fp32: the upper halves.
TILEKILN_INLINE vh upper_halves(vf low, vf high) {
  return {vuzp2q_u16(vreinterpretq_u16_f32(low.v), vreinterpretq_u16_f32(high.v))};
}
TILEKILN_INLINE vh load_halves(const fp8* p) {
  const uint16x8_t x = vmovl_u8(vld1_u8((const uint8_t*)p));
  return upper_halves(widen_fp8(vget_low_u16(x)), widen_fp8(vget_high_u16(x)));
}
// e5m2 -> bf16 likewise.
TILEKILN_INLINE vh load_halves(const bf8* p) {
  const uint16x8_t x = vshll_n_u8(vld1_u8((const uint8_t*)p), 8);
  return upper_halves(widen_fp16(vget_low_u16(x)), widen_fp16(vget_high_u16(x)));
}
template <class T> TILEKILN_INLINE vh load_halves(const T* p, int n) {
  if (n >= 8) return load_halves(p);
  T row[8];
  first_elements(row, p, n);
  return load_halves(row);
}

// Words of bf16 of the halves of bytes `first` and first + 1 of each word, less 8: the lower ones, or the upper. A number from 0 to 15
// below 2^23's mantissa, less 2^23 + 8, is one of bf16.
template <int kFirst, bool kUpper> TILEKILN_INLINE vf nibble_pairs(vf a) {
  constexpr int kShift = 8 * kFirst + 4 * kUpper;
  const uint32x4_t x = vreinterpretq_u32_f32(a.v), base = vdupq_n_u32(0x4b000000), mask = vdupq_n_u32(15);
  const auto number = [&](uint32x4_t bits) __attribute__((always_inline)) {
    const float32x4_t f = vreinterpretq_f32_u32(vorrq_u32(vandq_u32(bits, mask), base));
    return vreinterpretq_u32_f32(vsubq_f32(f, vdupq_n_f32(8388616.f)));
  };
  const uint32x4_t even = number(vshlq_u32(x, vdupq_n_s32(-kShift))),
                   odd = number(vshlq_u32(x, vdupq_n_s32(-kShift - 8)));
  return {vreinterpretq_f32_u32(vsriq_n_u32(odd, even, 16))};
}

TILEKILN_INLINE vh zero_halves() { return {vdupq_n_u16(0)}; }
TILEKILN_INLINE void store_halves(bf16* p, vh a) { vst1q_u16((uint16_t*)p, a.v); }

// Words (a, b) of two rows: lane i of low is element i, of high 4 more.
TILEKILN_INLINE void interleave_lanes(vh a, vh b, vf& low, vf& high) {
  low = words({vzip1q_u16(a.v, b.v)});
  high = words({vzip2q_u16(a.v, b.v)});
}

// The two halves of a register into two rows.
TILEKILN_INLINE void store_two_rows(bf16* p, long long row, vh a) {
  vst1_u16((uint16_t*)p, vget_low_u16(a.v));
  vst1_u16((uint16_t*)(p + row), vget_high_u16(a.v));
}

// Two rows of 8 -> 8 words (even[i], odd[i]).
TILEKILN_INLINE void interleave(bf16* p, vh even, vh odd) {
  vst1q_u16((uint16_t*)p, vzip1q_u16(even.v, odd.v));
  vst1q_u16((uint16_t*)(p + 8), vzip2q_u16(even.v, odd.v));
}

#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
