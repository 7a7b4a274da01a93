// SPDX-License-Identifier: MIT
// 8 fp32 lanes (x86-64-v3: AVX2, FMA, F16C).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/backends/target.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kLanes = 8;
// Register blocks, rows x vectors of accumulators: 16 registers, 12 of them accumulators.
constexpr int kBlockVectors = 2;
constexpr int block_rows(int vectors) { return vectors == 2 ? 6 : 8; }

using lane_bits = uint8_t;  // one bit per lane
struct vf { __m256 v; };

typedef float __attribute__((may_alias, aligned(1))) unaligned_float;

TILEKILN_INLINE vf load(const float* p) { return {_mm256_load_ps(p)}; }
TILEKILN_INLINE vf load_unaligned(const float* p) { return {_mm256_loadu_ps(p)}; }
TILEKILN_INLINE void store(float* p, vf a) { _mm256_store_ps(p, a.v); }
TILEKILN_INLINE void store_unaligned(float* p, vf a) { _mm256_storeu_ps(p, a.v); }
// Nothing: with 16 registers, memory is the better place for some.
TILEKILN_INLINE void keep(vf&) {}
// a, of which a compiler knows nothing: a product stays rounded, and is not made one operation with what is added to it.
TILEKILN_INLINE vf rounded(vf a) {
  asm("" : "+x"(a.v));
  return a;
}
TILEKILN_INLINE void before_loads(vf, vf) {}  // factors are read by the products themselves, or few at a time
TILEKILN_INLINE vf broadcast(float x) { return {_mm256_set1_ps(x)}; }
TILEKILN_INLINE vf broadcast_word(const void* p) {
  return {_mm256_set1_ps(*(const unaligned_float*)p)};
}  // any 32 bits
using word = vf;
TILEKILN_INLINE word load_word(const void* p) { return broadcast_word(p); }
TILEKILN_INLINE word load_word(const float& x) { return broadcast(x); }
TILEKILN_INLINE vf zero() { return {_mm256_setzero_ps()}; }
TILEKILN_INLINE vf iota() { return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7)}; }

TILEKILN_INLINE vf add(vf a, vf b) { return {_mm256_add_ps(a.v, b.v)}; }
TILEKILN_INLINE vf sub(vf a, vf b) { return {_mm256_sub_ps(a.v, b.v)}; }
TILEKILN_INLINE vf mul(vf a, vf b) { return {_mm256_mul_ps(a.v, b.v)}; }
TILEKILN_INLINE vf max(vf a, vf b) { return {_mm256_max_ps(a.v, b.v)}; }               // a NaN in b survives
TILEKILN_INLINE vf min(vf a, vf b) { return {_mm256_min_ps(a.v, b.v)}; }               // a NaN in b survives
TILEKILN_INLINE vf fma(vf a, vf b, vf c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }  // a b + c
TILEKILN_INLINE vf fms(vf a, vf b, vf c) { return {_mm256_fmsub_ps(a.v, b.v, c.v)}; }  // a b - c
TILEKILN_INLINE vf abs(vf a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.f), a.v)}; }

// One bit per lane -> one full lane.
TILEKILN_INLINE __m256 spread(lane_bits bits) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), bit), bit));
}
TILEKILN_INLINE vf select(lane_bits bits, vf yes, vf no) { return {_mm256_blendv_ps(no.v, yes.v, spread(bits))}; }
TILEKILN_INLINE vf keep_if(lane_bits bits, vf a) { return {_mm256_and_ps(a.v, spread(bits))}; }

TILEKILN_INLINE vf reciprocal(vf a) { return {_mm256_div_ps(_mm256_set1_ps(1.f), a.v)}; }

// 2^x = power(2^fraction, x) with fraction in [-1/2, 1/2]. x <= 127; below -126.5 the result is exactly 0, so -inf gives 0.
// x + 1.5 2^23 + 127 holds in its low mantissa bits the exponent of 2^whole as an fp32 number has it, 0 for the number 0. The
// product keeps every NaN; added to the bits of y instead, the exponent makes numbers of NaNs with low bits set.
constexpr bool kFractionCentred = true;
struct Split { vf whole, fraction; };
TILEKILN_INLINE Split split(vf x) {
  const vf magic = broadcast(12582912.f + 127.f);
  x = max(broadcast(-127.f), x);
  const vf whole = add(x, magic);
  return {whole, sub(x, sub(whole, magic))};
}
TILEKILN_INLINE vf power(vf y, Split x) {
  return mul(y, {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x.whole.v), 23))});
}

// 8 x 8 words, in registers.
TILEKILN_INLINE void transpose(vf* r) {
  __m256 t[8], u[8];
  TILEKILN_UNROLL(8) for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1] = _mm256_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  TILEKILN_UNROLL(8) for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) {
    r[i].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
