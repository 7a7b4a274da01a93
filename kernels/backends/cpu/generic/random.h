// SPDX-License-Identifier: MIT
// One 64-bit Philox counter word at a time.
#pragma once

#include "kernels/backends/cpu/generic/vector.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kCounters = 1;
struct vu { uint64_t v; };

TILEKILN_INLINE vu counters(uint64_t x) { return {x}; }
TILEKILN_INLINE vu counters_from(uint64_t x) { return {x}; }
TILEKILN_INLINE vu multiply_low(vu a, uint32_t m) { return {uint64_t(uint32_t(a.v)) * m}; }
TILEKILN_INLINE vu high32(vu a) { return {a.v >> 32}; }
TILEKILN_INLINE vu xor3(vu a, vu b, vu c) { return {a.v ^ b.v ^ c.v}; }

// The 8 bytes of a counter: the low halves of two words.
TILEKILN_INLINE vu join_words(vu low, vu high) { return {uint64_t(uint32_t(low.v)) | high.v << 32}; }
// One bit per byte, 8 bits per counter: byte <= threshold.
TILEKILN_INLINE uint64_t bytes_at_most(vu bytes, uint8_t threshold) {
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits |= uint64_t(uint8_t(bytes.v >> 8 * i) <= threshold) << i;
  return bits;
}
TILEKILN_INLINE void store_bytes(uint64_t* to, vu bytes) { *to = bytes.v; }

// Keep bits of 16 queries (group) and one key: half0 holds queries 0..7, half1 queries 8..15.
// Layout: keep[vector][key] of lane_bits, four queries a vector.
TILEKILN_INLINE void store_keep(lane_bits* keep, int group, int key, uint64_t half0, uint64_t half1) {
  lane_bits* p = keep + 4 * group * 64 + key;
  p[0] = half0 & 15;
  p[64] = half0 >> 4 & 15;
  p[128] = half1 & 15;
  p[192] = half1 >> 4 & 15;
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
