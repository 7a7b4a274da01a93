// SPDX-License-Identifier: MIT
// Two vectors of a row in the order in which bf16 widens fastest: its even elements, then its odd ones.
#pragma once

#include "kernels/backends/cpu/generic/horizontal.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Rounded to nearest even; the bits of bf16 stand above those of each lane.
TILEKILN_INLINE vf round_bf16(vf a) {
  typedef uint32_t uint4 __attribute__((vector_size(16)));
  const uint4 bits = (uint4)a.v, rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
  const uint4 is_nan = (uint4)(a.v != a.v);
  return {(float4)(((is_nan & quiet) | (~is_nan & rounded)) & 0xffff0000u)};
}
// Rounds vectors to what they are after having been stored.
TILEKILN_INLINE void round_even_odd(vf& even, vf& odd) { even = round_bf16(even), odd = round_bf16(odd); }
TILEKILN_INLINE void narrow_even_odd(bf16* p, vf even, vf odd) {
  typedef uint16_t short8 __attribute__((vector_size(16)));
  const short8 e = (short8)round_bf16(even).v, o = (short8)round_bf16(odd).v;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  const short8 both = __builtin_shufflevector(e, o, 1, 9, 3, 11, 5, 13, 7, 15);
#else
  const short8 both = __builtin_shufflevector(e, o, 0, 8, 2, 10, 4, 12, 6, 14);
#endif
  __builtin_memcpy(p, &both, sizeof both);
}

TILEKILN_INLINE void even_odd(const float* p, vf& even, vf& odd) {
  const vf a = load_unaligned(p), b = load_unaligned(p + kLanes);
  even = {__builtin_shufflevector(a.v, b.v, 0, 2, 4, 6)};
  odd = {__builtin_shufflevector(a.v, b.v, 1, 3, 5, 7)};
}

// Bytes, rounded to nearest even; the numbers lie within int16.
TILEKILN_INLINE void narrow_even_odd(signed char* p, vf even, vf odd) {
  narrow(p, vf{__builtin_shufflevector(even.v, odd.v, 0, 4, 1, 5)});
  narrow(p + kLanes, vf{__builtin_shufflevector(even.v, odd.v, 2, 6, 3, 7)});
}

// The larger of a number that is not negative and of |v|; NaN is the largest.
TILEKILN_INLINE vf max_magnitude(vf so_far, vf v) {
  const int4 a = (int4)so_far.v, b = (int4)v.v & 0x7fffffff;
  return choose(a > b, {(float4)a}, {(float4)b});
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
