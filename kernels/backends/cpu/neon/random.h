// SPDX-License-Identifier: MIT
// 64-bit lanes for Philox: one counter word per lane, so that a 32 x 32 multiply yields high and low with no blend.
#pragma once

#include "kernels/backends/cpu/neon/vector.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kCounters = 2;
struct vu { uint64x2_t v; };

TILEKILN_INLINE vu counters(uint64_t x) { return {vdupq_n_u64(x)}; }
TILEKILN_INLINE vu counters_from(uint64_t x) { return {vaddq_u64(vdupq_n_u64(x), uint64x2_t{0, 1})}; }
TILEKILN_INLINE vu multiply_low(vu a, uint32_t m) { return {vmull_n_u32(vmovn_u64(a.v), m)}; }
TILEKILN_INLINE vu high32(vu a) { return {vshrq_n_u64(a.v, 32)}; }
TILEKILN_INLINE vu xor3(vu a, vu b, vu c) { return {veorq_u64(veorq_u64(a.v, b.v), c.v)}; }

// The 8 bytes of a counter: the low halves of two words.
TILEKILN_INLINE vu join_words(vu low, vu high) { return {vsliq_n_u64(low.v, high.v, 32)}; }
// One bit per byte, 8 bits per counter: byte <= threshold.
TILEKILN_INLINE uint64_t bytes_at_most(vu bytes, uint8_t threshold) {
  const uint8x16_t kept = vcleq_u8(vreinterpretq_u8_u64(bytes.v), vdupq_n_u8(threshold));
  const uint8x16_t bits = vandq_u8(kept, vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u)));
  return uint64_t(vaddv_u8(vget_low_u8(bits))) | uint64_t(vaddv_u8(vget_high_u8(bits))) << 8;
}
TILEKILN_INLINE void store_bytes(uint64_t* to, vu bytes) { vst1q_u64(to, bytes.v); }

// Keep bits of 16 queries (group) and kCounters keys: half0 holds queries 0..7, half1 queries 8..15, 8 bits per key.
// Layout: keep[vector][key] of lane_bits, four queries a vector.
TILEKILN_INLINE void store_keep(lane_bits* keep, int group, int key, uint64_t half0, uint64_t half1) {
  lane_bits* p = keep + 4 * group * 64 + key;
  for (int i = 0; i < kCounters; ++i, ++p, half0 >>= 8, half1 >>= 8) {
    p[0] = half0 & 15;
    p[64] = half0 >> 4 & 15;
    p[128] = half1 & 15;
    p[192] = half1 >> 4 & 15;
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
