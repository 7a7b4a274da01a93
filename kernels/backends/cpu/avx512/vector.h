// SPDX-License-Identifier: MIT
// 16 fp32 lanes (AVX-512 F, BW, VL, DQ). A struct of one register and free functions: measured equal to raw intrinsics.
#pragma once

// g++ 12 warns of uninitialised values inside its own AVX-512 headers.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>

#include "kernels/backends/target.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kLanes = 16;
// Register blocks, rows x vectors of accumulators: kBlockRows(vectors). 32 registers; two FMAs a cycle of latency 4 need
// at least 8 accumulators in flight.
constexpr int kBlockVectors = 4;
constexpr int block_rows(int vectors) { return vectors >= 3 ? 4 : vectors == 2 ? 8 : 16; }

using lane_bits = uint16_t;  // one bit per lane
struct vf { __m512 v; };

typedef float __attribute__((may_alias, aligned(1))) unaligned_float;

TILEKILN_INLINE vf load(const float* p) { return {_mm512_load_ps(p)}; }
TILEKILN_INLINE vf load_unaligned(const float* p) { return {_mm512_loadu_ps(p)}; }
TILEKILN_INLINE void store(float* p, vf a) { _mm512_store_ps(p, a.v); }
TILEKILN_INLINE void store_unaligned(float* p, vf a) { _mm512_storeu_ps(p, a.v); }
// a stays in its register, instead of being read from memory again: where registers are few, compilers do that.
TILEKILN_INLINE void keep(vf& a) { asm("" : "+v"(a.v)); }
// a, of which a compiler knows nothing: a product stays rounded, and is not made one operation with what is added to it.
TILEKILN_INLINE vf rounded(vf a) {
  asm("" : "+v"(a.v));
  return a;
}
TILEKILN_INLINE void before_loads(vf, vf) {}  // factors are read by the products themselves, or few at a time
TILEKILN_INLINE vf broadcast(float x) { return {_mm512_set1_ps(x)}; }
TILEKILN_INLINE vf broadcast_word(const void* p) {
  return {_mm512_set1_ps(*(const unaligned_float*)p)};
}  // any 32 bits
using word = vf;
TILEKILN_INLINE word load_word(const void* p) { return broadcast_word(p); }
TILEKILN_INLINE word load_word(const float& x) { return broadcast(x); }
TILEKILN_INLINE vf zero() { return {_mm512_setzero_ps()}; }
TILEKILN_INLINE vf iota() { return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }

TILEKILN_INLINE vf add(vf a, vf b) { return {_mm512_add_ps(a.v, b.v)}; }
TILEKILN_INLINE vf sub(vf a, vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
TILEKILN_INLINE vf mul(vf a, vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
TILEKILN_INLINE vf max(vf a, vf b) { return {_mm512_max_ps(a.v, b.v)}; }               // a NaN in b survives
TILEKILN_INLINE vf min(vf a, vf b) { return {_mm512_min_ps(a.v, b.v)}; }               // a NaN in b survives
TILEKILN_INLINE vf fma(vf a, vf b, vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a b + c
TILEKILN_INLINE vf fms(vf a, vf b, vf c) { return {_mm512_fmsub_ps(a.v, b.v, c.v)}; }  // a b - c
TILEKILN_INLINE vf abs(vf a) { return {_mm512_abs_ps(a.v)}; }
TILEKILN_INLINE vf select(lane_bits bits, vf yes, vf no) { return {_mm512_mask_mov_ps(no.v, bits, yes.v)}; }
TILEKILN_INLINE vf keep_if(lane_bits bits, vf a) { return {_mm512_maskz_mov_ps(bits, a.v)}; }

// rcp14 and one Newton step: relative error 2^-27.
TILEKILN_INLINE vf reciprocal(vf a) {
  const __m512 r = _mm512_rcp14_ps(a.v);
  return {_mm512_mul_ps(r, _mm512_fnmadd_ps(a.v, r, _mm512_set1_ps(2.f)))};
}

// 2^x = power(2^fraction, x) with fraction = x - floor(x) in [0, 1]. Below -150 the result is exactly 0, so -inf gives 0;
// NaN stays NaN. vscalefps takes the floor itself and vreduceps gives 0 for infinities, so nothing needs clamping.
constexpr bool kFractionCentred = false;
struct Split { vf x, fraction; };
TILEKILN_INLINE Split split(vf x) { return {x, {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}}; }
TILEKILN_INLINE vf power(vf y, Split x) { return {_mm512_scalef_ps(y.v, x.x.v)}; }

// 16 x 16 words, in registers.
TILEKILN_INLINE void transpose(vf* r) {
  __m512i t[16], x[16];
  TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) x[i] = _mm512_castps_si512(r[i].v);
  TILEKILN_UNROLL(16) for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  TILEKILN_UNROLL(16) for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
  }
  TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
  TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) r[i].v = _mm512_castsi512_ps(x[i]);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
