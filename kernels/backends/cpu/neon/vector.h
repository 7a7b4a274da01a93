// SPDX-License-Identifier: MIT
// 4 fp32 lanes (AArch64: ARMv8.2 with dot products and fp16).
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernels/backends/target.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kLanes = 4;
// Register blocks, rows x vectors of accumulators: up to 24 of 32 registers. Four FMAs a cycle of latency 4 (Neoverse V1, V2) need
// at least 16 accumulators in flight.
constexpr int kBlockVectors = 4;
constexpr int block_rows(int vectors) { return vectors >= 3 ? 6 : vectors == 2 ? 8 : 16; }

using lane_bits = uint8_t;  // one bit per lane, the low four
struct vf { float32x4_t v; };

typedef uint32_t __attribute__((may_alias, aligned(1))) unaligned_word;

TILEKILN_INLINE vf load(const float* p) { return {vld1q_f32(p)}; }
TILEKILN_INLINE vf load_unaligned(const float* p) { return {vld1q_f32(p)}; }
TILEKILN_INLINE void store(float* p, vf a) { vst1q_f32(p, a.v); }
TILEKILN_INLINE void store_unaligned(float* p, vf a) { vst1q_f32(p, a.v); }
// a stays in its register, instead of being read from memory again.
TILEKILN_INLINE void keep(vf& a) { asm("" : "+w"(a.v)); }
// a, of which a compiler knows nothing: a product stays rounded, and is not made one operation with what is added to it.
TILEKILN_INLINE vf rounded(vf a) {
  asm("" : "+w"(a.v));
  return a;
}
// Loads that follow stay behind what makes these sums. Compilers load all that a loop reads first, and put accumulators on the
// stack for it.
TILEKILN_INLINE void before_loads(vf a, vf b) { asm volatile("" : : "w"(a.v), "w"(b.v) : "memory"); }
TILEKILN_INLINE vf broadcast(float x) { return {vdupq_n_f32(x)}; }
TILEKILN_INLINE vf broadcast_word(const void* p) {  // any 32 bits
  return {vreinterpretq_f32_u32(vdupq_n_u32(*(const unaligned_word*)p))};
}
TILEKILN_INLINE vf zero() { return {vdupq_n_f32(0)}; }
TILEKILN_INLINE vf iota() { return {float32x4_t{0, 1, 2, 3}}; }

// A factor of products that take one lane of a register for all: lane 0. A plain load is free beside products, where a broadcast takes
// one of their ports; compilers make one of either, so the load is spelled out.
struct word { float32x4_t v; };
TILEKILN_INLINE word load_word(const void* p) {
  word r;
  asm("ldr %s0, %1" : "=w"(r.v) : "m"(*(const unaligned_word*)p));
  return r;
}
TILEKILN_INLINE word load_word(const float& x) { return load_word((const void*)&x); }

TILEKILN_INLINE vf add(vf a, vf b) { return {vaddq_f32(a.v, b.v)}; }
TILEKILN_INLINE vf sub(vf a, vf b) { return {vsubq_f32(a.v, b.v)}; }
TILEKILN_INLINE vf mul(vf a, vf b) { return {vmulq_f32(a.v, b.v)}; }
TILEKILN_INLINE vf max(vf a, vf b) { return {vmaxq_f32(a.v, b.v)}; }             // a NaN survives
TILEKILN_INLINE vf min(vf a, vf b) { return {vminq_f32(a.v, b.v)}; }             // a NaN survives
TILEKILN_INLINE vf fma(vf a, vf b, vf c) { return {vfmaq_f32(c.v, a.v, b.v)}; }  // a b + c
TILEKILN_INLINE vf fma(word a, vf b, vf c) { return {vfmaq_laneq_f32(c.v, b.v, a.v, 0)}; }
TILEKILN_INLINE vf fms(vf a, vf b, vf c) { return {vfmaq_f32(vnegq_f32(c.v), a.v, b.v)}; }  // a b - c
TILEKILN_INLINE vf abs(vf a) { return {vabsq_f32(a.v)}; }

// One bit per lane -> one full lane.
TILEKILN_INLINE uint32x4_t spread(lane_bits bits) { return vtstq_u32(vdupq_n_u32(bits), uint32x4_t{1, 2, 4, 8}); }
TILEKILN_INLINE vf select(lane_bits bits, vf yes, vf no) { return {vbslq_f32(spread(bits), yes.v, no.v)}; }
TILEKILN_INLINE vf keep_if(lane_bits bits, vf a) {
  return {vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a.v), spread(bits)))};
}

TILEKILN_INLINE vf reciprocal(vf a) { return {vdivq_f32(vdupq_n_f32(1.f), a.v)}; }

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
  return mul(y, {vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x.whole.v), 23))});
}

// 4 x 4 words, in registers.
TILEKILN_INLINE void transpose(vf* r) {
  const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0].v, r[1].v)),
                    b = vreinterpretq_f64_f32(vtrn2q_f32(r[0].v, r[1].v)),
                    c = vreinterpretq_f64_f32(vtrn1q_f32(r[2].v, r[3].v)),
                    d = vreinterpretq_f64_f32(vtrn2q_f32(r[2].v, r[3].v));
  r[0] = {vreinterpretq_f32_f64(vtrn1q_f64(a, c))};
  r[1] = {vreinterpretq_f32_f64(vtrn1q_f64(b, d))};
  r[2] = {vreinterpretq_f32_f64(vtrn2q_f64(a, c))};
  r[3] = {vreinterpretq_f32_f64(vtrn2q_f64(b, d))};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
