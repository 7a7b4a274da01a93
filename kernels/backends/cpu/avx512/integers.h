// SPDX-License-Identifier: MIT
// Products of integers: pairs of int16, and quads of int8 where the machine has VNNI (TILEKILN_QUADS). Registers are vf by their bits.
#pragma once

#include "kernels/backends/cpu/avx512/vector.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE vf from_int32(vf a) { return {_mm512_cvtepi32_ps(_mm512_castps_si512(a.v))}; }

// int32 lanes: sum + even a even b + odd a odd b, modulo 2^32
TILEKILN_INLINE vf dot_int16(vf sum, vf a, vf b) {
  const __m512i x = _mm512_madd_epi16(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v));
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum.v), x))};
}

#ifndef __AVX512VNNI__

#define TILEKILN_QUADS 0

#else

#define TILEKILN_QUADS 1
constexpr int kQuadZero = 0;  // what products take off the unsigned bytes
TILEKILN_INLINE vf add_int32(vf a, vf b) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
TILEKILN_INLINE vf times_int32(vf a, int n) {
  return {_mm512_castsi512_ps(_mm512_mullo_epi32(_mm512_castps_si512(a.v), _mm512_set1_epi32(n)))};
}
// int32 lanes: sum + the four products of unsigned bytes of a and signed bytes of b, modulo 2^32
TILEKILN_INLINE vf dot_quad(vf sum, vf a, vf b) {
  return {_mm512_castsi512_ps(
      _mm512_dpbusd_epi32(_mm512_castps_si512(sum.v), _mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}

TILEKILN_INLINE __mmask64 first_bytes(long long n) { return n >= 64 ? ~0ull : n <= 0 ? 0 : (1ull << n) - 1; }

// The first n of 64 bytes; the others read as 0. Without reading past them.
TILEKILN_INLINE vf load_bytes(const void* p, long long n) {
  return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi8(first_bytes(n), p))};
}
// b + 128 of each byte: signed to unsigned.
TILEKILN_INLINE vf flip_signs(vf a) {
  return {_mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a.v), _mm512_set1_epi8(-128)))};
}

// The lower half of each byte, and the upper one.
TILEKILN_INLINE vf low_nibbles(vf a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi8(15)))};
}
TILEKILN_INLINE vf high_nibbles(vf a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_srli_epi16(_mm512_castps_si512(a.v), 4), _mm512_set1_epi8(15)))};
}

// 16 registers -> lane i is the sum over the int32 lanes of r[i], modulo 2^32. Clobbers r.
TILEKILN_INLINE vf int32_totals(vf* r) {
  __m512i x[16];
  TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) x[i] = _mm512_castps_si512(r[i].v);
  TILEKILN_UNROLL(8) for (int i = 0; i < 8; ++i) {
    const __m512i low = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]),
                  high = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    x[i] = _mm512_add_epi32(low, high);
  }
  TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) {
    const __m512i low = _mm512_unpacklo_epi64(x[2 * i], x[2 * i + 1]),
                  high = _mm512_unpackhi_epi64(x[2 * i], x[2 * i + 1]);
    x[i] = _mm512_add_epi32(low, high);
  }
  const auto halves = [](__m512i a, __m512i b) __attribute__((always_inline)) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
  };
  return {_mm512_castsi512_ps(halves(halves(x[0], x[1]), halves(x[2], x[3])))};
}

// Lane i is the sum of n bytes from p + i row on; rows from `rows` on are the last again.
TILEKILN_INLINE vf byte_totals(const signed char* p, long long row, int rows, long long n) {
  vf sum[16];
  const signed char* from[16];
  TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) sum[i] = zero(), from[i] = p + (i < rows ? i : rows - 1) * row;
  const vf ones = {_mm512_castsi512_ps(_mm512_set1_epi8(1))};
  for (long long k = 0; k < n; k += 64) {
    TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) sum[i] = dot_quad(sum[i], ones, load_bytes(from[i] + k, n - k));
  }
  return int32_totals(sum);
}

// Four rows of 64 bytes -> 64 words of one byte of each, in order.
TILEKILN_INLINE void interleave_bytes(float* to, const vf* rows) {
  __m512i r[4];
  TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) r[i] = _mm512_castps_si512(rows[i].v);
  const __m512i a = _mm512_unpacklo_epi8(r[0], r[1]), b = _mm512_unpackhi_epi8(r[0], r[1]);
  const __m512i c = _mm512_unpacklo_epi8(r[2], r[3]), d = _mm512_unpackhi_epi8(r[2], r[3]);
  const __m512i x0 = _mm512_unpacklo_epi16(a, c), x1 = _mm512_unpackhi_epi16(a, c);
  const __m512i x2 = _mm512_unpacklo_epi16(b, d), x3 = _mm512_unpackhi_epi16(b, d);
  const __m512i y0 = _mm512_shuffle_i32x4(x0, x1, 0x44), y1 = _mm512_shuffle_i32x4(x0, x1, 0xee);
  const __m512i y2 = _mm512_shuffle_i32x4(x2, x3, 0x44), y3 = _mm512_shuffle_i32x4(x2, x3, 0xee);
  _mm512_store_si512(to, _mm512_shuffle_i32x4(y0, y2, 0x88));
  _mm512_store_si512(to + 16, _mm512_shuffle_i32x4(y0, y2, 0xdd));
  _mm512_store_si512(to + 32, _mm512_shuffle_i32x4(y1, y3, 0x88));
  _mm512_store_si512(to + 48, _mm512_shuffle_i32x4(y1, y3, 0xdd));
}

#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
