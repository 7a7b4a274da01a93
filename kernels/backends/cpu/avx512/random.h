// SPDX-License-Identifier: MIT
// 64-bit lanes for Philox: one counter word per lane, so that a 32 x 32 multiply yields high and low with no blend.
#pragma once

#include "kernels/backends/cpu/avx512/vector.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kCounters = 8;
struct vu { __m512i v; };

TILEKILN_INLINE vu counters(uint64_t x) { return {_mm512_set1_epi64((long long)x)}; }
TILEKILN_INLINE vu counters_from(uint64_t x) {
  return {_mm512_add_epi64(_mm512_set1_epi64((long long)x), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7))};
}
TILEKILN_INLINE vu multiply_low(vu a, uint32_t m) { return {_mm512_mul_epu32(a.v, _mm512_set1_epi64(m))}; }
TILEKILN_INLINE vu high32(vu a) { return {_mm512_srli_epi64(a.v, 32)}; }
TILEKILN_INLINE vu xor3(vu a, vu b, vu c) { return {_mm512_ternarylogic_epi64(a.v, b.v, c.v, 0x96)}; }

// The 8 bytes of a counter: the low halves of two words.
TILEKILN_INLINE vu join_words(vu low, vu high) {
  return {_mm512_mask_mov_epi32(low.v, 0xAAAA, _mm512_slli_epi64(high.v, 32))};
}
// One bit per byte, 8 bits per counter: byte <= threshold.
TILEKILN_INLINE uint64_t bytes_at_most(vu bytes, uint8_t threshold) {
  return _mm512_cmple_epu8_mask(bytes.v, _mm512_set1_epi8((char)threshold));
}
TILEKILN_INLINE void store_bytes(uint64_t* to, vu bytes) { _mm512_storeu_si512(to, bytes.v); }

// Keep bits of 16 queries (group) and kCounters keys: half0 holds queries 0..7, half1 queries 8..15, 8 bits per key.
// Layout: keep[vector][key] of lane_bits.
TILEKILN_INLINE void store_keep(lane_bits* keep, int group, int key, uint64_t half0, uint64_t half1) {
  const __m128i bits = _mm_unpacklo_epi8(_mm_cvtsi64_si128((long long)half0), _mm_cvtsi64_si128((long long)half1));
  _mm_storeu_si128((__m128i*)(keep + group * 64 + key), bits);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
