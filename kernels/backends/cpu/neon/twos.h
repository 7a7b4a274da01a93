// SPDX-License-Identifier: MIT
// Two vectors of a row in the order in which bf16 widens fastest: its even elements, then its odd ones.
#pragma once

#include "kernels/backends/cpu/neon/horizontal.h"
#include "kernels/backends/cpu/neon/pairs.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Rounded to nearest even, as words of (even, odd).
TILEKILN_INLINE uint16x8_t bf16_words(vf even, vf odd) {
#if TILEKILN_PAIRS
  return interleaved(both(even, odd)).v;
#else
  return vreinterpretq_u16_u32(vsriq_n_u32(round_bf16(odd), round_bf16(even), 16));
#endif
}
TILEKILN_INLINE void narrow_even_odd(bf16* p, vf even, vf odd) { vst1q_u16((uint16_t*)p, bf16_words(even, odd)); }
#if TILEKILN_PAIRS
// The first `left` of 8.
TILEKILN_INLINE void store_halves(bf16* p, vh a, int left) {
  if (left >= 8) return store_halves(p, a);
  bf16 row[8];
  store_halves(row, a);
  __builtin_memcpy(p, row, left * sizeof(bf16));
}
TILEKILN_INLINE void stream_halves(bf16* p, vh a) { store_halves(p, a); }
#endif
// Rounds vectors to what they are after having been stored.
TILEKILN_INLINE void round_even_odd(vf& even, vf& odd) { even_odd(bf16_words(even, odd), even, odd); }

TILEKILN_INLINE void even_odd(const float* p, vf& even, vf& odd) {
  const vf a = load_unaligned(p), b = load_unaligned(p + kLanes);
  even = {vuzp1q_f32(a.v, b.v)};
  odd = {vuzp2q_f32(a.v, b.v)};
}

// Bytes, rounded to nearest even; the numbers lie within int16.
TILEKILN_INLINE void narrow_even_odd(signed char* p, vf even, vf odd) {
  const int16x4_t e = vqmovn_s32(vcvtnq_s32_f32(even.v)), o = vqmovn_s32(vcvtnq_s32_f32(odd.v));
  vst1_s8(p, vqmovn_s16(vcombine_s16(vzip1_s16(e, o), vzip2_s16(e, o))));
}

// The larger of a number that is not negative and of |v|; NaN is the largest.
TILEKILN_INLINE vf max_magnitude(vf so_far, vf v) {
  const int32x4_t magnitude = vandq_s32(vreinterpretq_s32_f32(v.v), vdupq_n_s32(0x7fffffff));
  return {vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(so_far.v), magnitude))};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
