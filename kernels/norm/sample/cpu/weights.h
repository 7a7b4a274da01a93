// SPDX-License-Identifier: MIT
// Weights of numbers as integers, the same bits in every instruction set: w(v) = floor(2^40 2^-t), t = (top - v) by. Each product
// is rounded before it is added to anything, for a fused one is rounded once.
#pragma once

#include "kernels/backends/cpu/exp2.h"
#include "kernels/norm/sample/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kBlock = norm::kSampleBlock, kBuckets = norm::kSampleBuckets;
constexpr float kLargest = 3.40282347e38f, kSmallest = 1.17549435e-38f;
constexpr float kFar = 42;  // t of what has the weight 0
constexpr uint64_t kHighest = 1ull << 40;

typedef uint32_t u32s __attribute__((vector_size(32), may_alias));
typedef uint64_t u64s __attribute__((vector_size(64), may_alias));
typedef float f32s __attribute__((vector_size(32), may_alias));

struct Weigher { float top, by; };
// Weights of a block of numbers, and round(32 t): places, which fall as numbers rise.
struct Weights {
  alignas(64) uint64_t of[kBlock];
  alignas(64) uint32_t place[kBlock];
};

// x + kWhole has round(x) in its low bits, for x from 0 to 2^22.
constexpr float kWhole = 12582912.f;
constexpr uint32_t kWholeBits = 0x4b400000u;

// v: a whole block. Numbers below `least` weigh 0.
template <bool kPlaces>
TILEKILN_INLINE void weigh(const float* v, const Weigher& row, float least, Weights& to) {
  alignas(64) float powers[kBlock], wholes[kBlock];
  const vf top = broadcast(row.top), by = broadcast(row.by), magic = broadcast(kWhole);
  TILEKILN_UNROLL(4) for (int i = 0; i < kBlock; i += kLanes) {
    const vf t = min(broadcast(kFar), rounded(mul(sub(top, load(v + i)), by)));
    const vf sum = add(t, magic), fraction = sub(sub(sum, magic), t);  // both exact, from -1/2 to 1/2
    vf y = broadcast(Exp2Coefficients<5, true>::k[5]);
    TILEKILN_UNROLL(5)
    for (int d = 4; d >= 0; --d) y = add(rounded(mul(y, fraction)), broadcast(Exp2Coefficients<5, true>::k[d]));
    store(powers + i, y);
    store(wholes + i, sum);
    if constexpr (kPlaces) store((float*)(to.place + i), add(mul(t, broadcast(32)), magic));
  }
  // A power of 2^fraction is a mantissa of 24 bits and an exponent of 0 or -1.
  const f32s lowest = {least, least, least, least, least, least, least, least};
  TILEKILN_UNROLL(8) for (int i = 0; i < kBlock; i += 8) {
    const u32s y = *(const u32s*)(powers + i), whole = *(const u32s*)(wholes + i) - kWholeBits;
    const u32s mantissa = ((y & 0x7fffffu) | 0x800000u) & (u32s)(*(const f32s*)(v + i) >= lowest);
    const u32s down = whole + 127 - (y >> 23);
    *(u64s*)(to.of + i) = (__builtin_convertvector(mantissa, u64s) << 17) >> __builtin_convertvector(down, u64s);
    if constexpr (kPlaces) *(u32s*)(to.place + i) -= kWholeBits;
  }
}

// The sum of a block's weights.
TILEKILN_INLINE uint64_t sum_of(const Weights& w) {
  u64s sum = *(const u64s*)w.of;
  TILEKILN_UNROLL(8) for (int i = 8; i < kBlock; i += 8) sum += *(const u64s*)(w.of + i);
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

// A number as a word of the same order.
TILEKILN_INLINE uint32_t ordered(float v) {
  uint32_t bits;
  __builtin_memcpy(&bits, &v, sizeof bits);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
// The next number above a finite one or -inf.
TILEKILN_INLINE float next_above(float v) {
  uint32_t word = ordered(v) + 1;
  word = word >> 31 ? word & 0x7fffffffu : ~word;
  __builtin_memcpy(&v, &word, sizeof v);
  return v;
}

// A value that a compiler must not fuse with what follows.
template <class T> TILEKILN_INLINE T apart(T x) {
  asm("" : "+m"(x));
  return x;
}

// log(w / 2^40) of w >= 2^40: with w = 2^e m, m from 1 to 2, e log(2) + 2 atanh((m - 1) / (m + 1)).
TILEKILN_INLINE double log_of(uint64_t w) {
  const int e = 63 - __builtin_clzll(w);
  const double m = double(w) / double(1ull << e), s = (m - 1) / (m + 1), s2 = apart(s * s);
  double y = 1.0 / 25;
  for (int i = 23; i > 0; i -= 2) y = apart(y * s2) + 1.0 / i;
  return apart((e - 40) * 0.69314718055994530942) + apart(2 * s * y);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
