// SPDX-License-Identifier: MIT
// Products of integers: pairs of int16, and quads of int8 by USDOT, or SDOT where there is only that. Registers are vf by their bits.
#pragma once

#include "kernels/backends/cpu/neon/vector.h"

#define TILEKILN_QUADS 1

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE int32x4_t int32_of(vf a) { return vreinterpretq_s32_f32(a.v); }
TILEKILN_INLINE uint8x16_t bytes_of(vf a) { return vreinterpretq_u8_f32(a.v); }
TILEKILN_INLINE vf of_int32(int32x4_t a) { return {vreinterpretq_f32_s32(a)}; }
TILEKILN_INLINE vf of_bytes(uint8x16_t a) { return {vreinterpretq_f32_u8(a)}; }

TILEKILN_INLINE vf from_int32(vf a) { return {vcvtq_f32_s32(int32_of(a))}; }

// int32 lanes: sum + even a even b + odd a odd b, modulo 2^32
TILEKILN_INLINE vf dot_int16(vf sum, vf a, vf b) {
  const int16x8_t x = vreinterpretq_s16_f32(a.v), y = vreinterpretq_s16_f32(b.v);
  const int32x4_t low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_high_s16(x, y);
  return of_int32(vaddq_s32(int32_of(sum), vpaddq_s32(low, high)));
}
TILEKILN_INLINE vf dot_int16(vf sum, vf a, word b) { return dot_int16(sum, a, vf{vdupq_laneq_f32(b.v, 0)}); }

TILEKILN_INLINE vf add_int32(vf a, vf b) { return of_int32(vaddq_s32(int32_of(a), int32_of(b))); }
TILEKILN_INLINE vf times_int32(vf a, int n) { return of_int32(vmulq_n_s32(int32_of(a), n)); }

// b + 128 of each byte: signed to unsigned, and back.
TILEKILN_INLINE vf flip_signs(vf a) { return of_bytes(veorq_u8(bytes_of(a), vdupq_n_u8(128))); }

// int32 lanes: sum + the four products of bytes of a, less kQuadZero, and signed bytes of b, modulo 2^32.
#ifdef __ARM_FEATURE_MATMUL_INT8
constexpr int kQuadZero = 0;
TILEKILN_INLINE vf dot_quad(vf sum, vf a, vf b) {
  return of_int32(vusdotq_s32(int32_of(sum), bytes_of(a), vreinterpretq_s8_f32(b.v)));
}
TILEKILN_INLINE vf dot_quad(vf sum, vf a, word b) {
  return of_int32(vusdotq_laneq_s32(int32_of(sum), bytes_of(a), vreinterpretq_s8_f32(b.v), 0));
}
#else  // both factors are signed; what is done to a is done once for all rows that meet it
constexpr int kQuadZero = 128;
TILEKILN_INLINE vf dot_quad(vf sum, vf a, vf b) {
  const int8x16_t x = vreinterpretq_s8_f32(flip_signs(a).v);
  return of_int32(vdotq_s32(int32_of(sum), x, vreinterpretq_s8_f32(b.v)));
}
TILEKILN_INLINE vf dot_quad(vf sum, vf a, word b) {
  const int8x16_t x = vreinterpretq_s8_f32(flip_signs(a).v);
  return of_int32(vdotq_laneq_s32(int32_of(sum), x, vreinterpretq_s8_f32(b.v), 0));
}
#endif

// The first n of 16 bytes; the others read as 0. Without reading past them.
TILEKILN_INLINE vf load_bytes(const void* p, long long n) {
  if (n >= 16) return of_bytes(vld1q_u8((const uint8_t*)p));
  uint8_t row[16] = {};
  if (n > 0) __builtin_memcpy(row, p, n);
  return of_bytes(vld1q_u8(row));
}

// The lower half of each byte, and the upper one.
TILEKILN_INLINE vf low_nibbles(vf a) { return of_bytes(vandq_u8(bytes_of(a), vdupq_n_u8(15))); }
TILEKILN_INLINE vf high_nibbles(vf a) { return of_bytes(vshrq_n_u8(bytes_of(a), 4)); }

// Lane i is the sum of n bytes from p + i row on; rows from `rows` on are the last again.
TILEKILN_INLINE vf byte_totals(const signed char* p, long long row, int rows, long long n) {
  int32x4_t sum[4];
  const signed char* from[4];
  TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) sum[i] = vdupq_n_s32(0), from[i] = p + (i < rows ? i : rows - 1) * row;
  for (long long k = 0; k < n; k += 16) {
    TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) {
      const int8x16_t bytes = vreinterpretq_s8_f32(load_bytes(from[i] + k, n - k).v);
      sum[i] = vdotq_s32(sum[i], bytes, vdupq_n_s8(1));
    }
  }
  return of_int32(vpaddq_s32(vpaddq_s32(sum[0], sum[1]), vpaddq_s32(sum[2], sum[3])));
}

// Four rows of 16 bytes -> 16 words of one byte of each, in order. By plain stores, whose registers compilers use on; st4 wants four in
// a row, and what it wrote is read again.
TILEKILN_INLINE void interleave_bytes(float* to, const vf* rows) {
  const auto low = [](vf a, vf b) { return of_bytes(vzip1q_u8(bytes_of(a), bytes_of(b))); };
  const auto high = [](vf a, vf b) { return of_bytes(vzip2q_u8(bytes_of(a), bytes_of(b))); };
  const vf even[2] = {low(rows[0], rows[2]), high(rows[0], rows[2])};
  const vf odd[2] = {low(rows[1], rows[3]), high(rows[1], rows[3])};
  TILEKILN_UNROLL(2) for (int i = 0; i < 2; ++i) {
    store(to + 2 * i * kLanes, low(even[i], odd[i]));
    store(to + (2 * i + 1) * kLanes, high(even[i], odd[i]));
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
