// SPDX-License-Identifier: MIT
// 4 fp32 lanes in portable vector extensions (GCC and clang), for any 64-bit machine. Correct first; speed is no goal.
#pragma once

#include <cstdint>

#include "kernels/backends/target.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kLanes = 4;
// Register blocks, rows x vectors of accumulators: 8 of the 16 registers that even a plain x86-64 has.
constexpr int kBlockVectors = 2;
constexpr int block_rows(int vectors) { return vectors == 2 ? 4 : 8; }

using lane_bits = uint8_t;  // one bit per lane, the low four
typedef float float4 __attribute__((vector_size(16)));
typedef int32_t int4 __attribute__((vector_size(16)));
struct vf { float4 v; };

TILEKILN_INLINE vf load(const float* p) { return {*(const float4*)__builtin_assume_aligned(p, 16)}; }
TILEKILN_INLINE vf load_unaligned(const float* p) {
  vf r;
  __builtin_memcpy(&r.v, p, sizeof r.v);
  return r;
}
TILEKILN_INLINE void store(float* p, vf a) { *(float4*)__builtin_assume_aligned(p, 16) = a.v; }
TILEKILN_INLINE void store_unaligned(float* p, vf a) { __builtin_memcpy(p, &a.v, sizeof a.v); }
// Nothing: with 16 registers, memory is the better place for some.
TILEKILN_INLINE void keep(vf&) {}
// a, of which a compiler knows nothing: a product stays rounded, and is not made one operation with what is added to it.
TILEKILN_INLINE vf rounded(vf a) {
  asm("" : "+m"(a.v));
  return a;
}
TILEKILN_INLINE void before_loads(vf, vf) {}  // factors are read by the products themselves, or few at a time
TILEKILN_INLINE vf broadcast(float x) { return {float4{x, x, x, x}}; }
TILEKILN_INLINE vf broadcast_word(const void* p) {  // any 32 bits
  float x;
  __builtin_memcpy(&x, p, sizeof x);
  return broadcast(x);
}
using word = vf;
TILEKILN_INLINE word load_word(const void* p) { return broadcast_word(p); }
TILEKILN_INLINE word load_word(const float& x) { return broadcast(x); }
TILEKILN_INLINE vf zero() { return {float4{0, 0, 0, 0}}; }
TILEKILN_INLINE vf iota() { return {float4{0, 1, 2, 3}}; }

TILEKILN_INLINE vf choose(int4 mask, vf yes, vf no) { return {(float4)((mask & (int4)yes.v) | (~mask & (int4)no.v))}; }

TILEKILN_INLINE vf add(vf a, vf b) { return {a.v + b.v}; }
TILEKILN_INLINE vf sub(vf a, vf b) { return {a.v - b.v}; }
TILEKILN_INLINE vf mul(vf a, vf b) { return {a.v * b.v}; }
TILEKILN_INLINE vf max(vf a, vf b) { return choose(a.v > b.v, a, b); }  // a NaN in b survives
TILEKILN_INLINE vf min(vf a, vf b) { return choose(a.v < b.v, a, b); }  // a NaN in b survives
TILEKILN_INLINE vf fma(vf a, vf b, vf c) { return {a.v * b.v + c.v}; }  // a b + c, rounded once or twice
TILEKILN_INLINE vf fms(vf a, vf b, vf c) { return {a.v * b.v - c.v}; }  // a b - c
TILEKILN_INLINE vf abs(vf a) { return {(float4)((int4)a.v & 0x7fffffff)}; }

// One bit per lane -> one full lane.
TILEKILN_INLINE int4 spread(lane_bits bits) {
  const int4 bit = {1, 2, 4, 8};
  return (bit & int32_t(bits)) == bit;
}
TILEKILN_INLINE vf select(lane_bits bits, vf yes, vf no) { return choose(spread(bits), yes, no); }
TILEKILN_INLINE vf keep_if(lane_bits bits, vf a) { return {(float4)((int4)a.v & spread(bits))}; }

TILEKILN_INLINE vf reciprocal(vf a) { return {1.f / a.v}; }

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
TILEKILN_INLINE vf power(vf y, Split x) { return mul(y, {(float4)((int4)x.whole.v << 23)}); }

// 4 x 4 words.
TILEKILN_INLINE void transpose(vf* r) {
  float4 t[4];
  TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) t[i] = float4{r[0].v[i], r[1].v[i], r[2].v[i], r[3].v[i]};
  TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) r[i].v = t[i];
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
