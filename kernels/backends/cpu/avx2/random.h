// SPDX-License-Identifier: MIT
// 64-bit lanes for Philox: one counter word per lane, so that a 32 x 32 multiply yields high and low with no blend.
#pragma once

#include "kernels/backends/cpu/avx2/vector.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kCounters = 4;
struct vu { __m256i v; };

TILEKILN_INLINE vu counters(uint64_t x) { return {_mm256_set1_epi64x((long long)x)}; }
TILEKILN_INLINE vu counters_from(uint64_t x) {
  return {_mm256_add_epi64(_mm256_set1_epi64x((long long)x), _mm256_setr_epi64x(0, 1, 2, 3))};
}
TILEKILN_INLINE vu multiply_low(vu a, uint32_t m) { return {_mm256_mul_epu32(a.v, _mm256_set1_epi64x(m))}; }
TILEKILN_INLINE vu high32(vu a) { return {_mm256_srli_epi64(a.v, 32)}; }
TILEKILN_INLINE vu xor3(vu a, vu b, vu c) { return {_mm256_xor_si256(_mm256_xor_si256(a.v, b.v), c.v)}; }

// The 8 bytes of a counter: the low halves of two words.
TILEKILN_INLINE vu join_words(vu low, vu high) {
  return {_mm256_blend_epi32(low.v, _mm256_slli_epi64(high.v, 32), 0xAA)};
}
// One bit per byte, 8 bits per counter: byte <= threshold.
TILEKILN_INLINE uint64_t bytes_at_most(vu bytes, uint8_t threshold) {
  const __m256i smaller = _mm256_min_epu8(bytes.v, _mm256_set1_epi8((char)threshold));
  return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(smaller, bytes.v));
}
TILEKILN_INLINE void store_bytes(uint64_t* to, vu bytes) { _mm256_storeu_si256((__m256i*)to, bytes.v); }

// Keep bits of 16 queries (group) and kCounters keys: half0 holds queries 0..7, half1 queries 8..15, 8 bits per key.
// Layout: keep[vector][key] of lane_bits.
TILEKILN_INLINE void store_keep(lane_bits* keep, int group, int key, uint64_t half0, uint64_t half1) {
  __builtin_memcpy(keep + 2 * group * 64 + key, &half0, kCounters);
  __builtin_memcpy(keep + (2 * group + 1) * 64 + key, &half1, kCounters);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
