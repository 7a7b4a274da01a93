// SPDX-License-Identifier: MIT
// Online softmax, purely vertical: one lane is one query.
#pragma once

#include "kernels/attention/cpu/tile.h"
#include "kernels/backends/cpu/compute.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// P is 2^(c S - fl(c m)), one operation a score, and what rounds c m divides out. That holds as long as its rounding, half of the last
// place of c m, is no number that 2 can not be raised to: beyond kFar, logits of 1e11 or the lowest bias, a pass more makes S
// to c (S - m) first, which is 0 at the maximum.
constexpr float kFar = 0x1p20f;
TILEKILN_INLINE bool is_far(vf maximum, vf c) { return any_above(abs(mul(maximum, c)), broadcast(kFar)); }

inline void subtract_maximum(float* s, int j0, int j1, int begin, int end, const vf* m, vf c) {
  for (i64 key = begin; key < end; ++key) {
    for (int j = j0; j < j1; ++j) {
      float* p = s + key * kTileQ + j * kLanes;
      store(p, mul(sub(load(p), m[j]), c));
    }
  }
}

// Changes the state for a new maximum m': alpha = 2^(fl(c m) - fl(c m')), l = alpha l, m = m'. Returns what P subtracts: fl(c m').
// Both products are rounded, as P has them, and the old one is remembered: where m stays, alpha is exactly 1. An alpha that is only near
// it is the same in block after block, and l and O drift with the number of keys.
TILEKILN_INLINE vf raise_maximum(vf& m, vf& l, vf& shift, vf& alpha, vf maximum, vf c, bool far) {
  const vf cm = rounded(mul(maximum, c));
  alpha = exp2<5>(far ? mul(sub(m, maximum), c) : sub(shift, cm));
  l = mul(l, alpha);
  m = maximum;
  shift = cm;
  return far ? zero() : cm;
}

// Changes of P between its sum and its product with V: dropped, scaled by V's block scale, or both.
struct Alteration {
  const lane_bits* keep;  // [vector][key], see Scratch
  float gain;
};

// P = 2^(c S - cm) over keys [begin, end) and N vectors from j0; l += P, then P is altered and stored in words over S.
// With two keys a word, begin is even and a missing last key counts as P = 0. Weighs: P = S, an operator's own weights.
template <class Compute, bool Altered, int N, bool Weighs = false>
TILEKILN_INLINE void probabilities(float* s, int j0, int begin, int end, vf c, const vf* cm, vf* l,
                                   const Alteration& alteration) {
  // Sums stay in registers: as memory that S might alias, they cost a store each (bf16: 20 % of this pass).
  vf shift[N], sum[N];
  TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
    shift[j] = Weighs ? zero() : cm[j];
    sum[j] = zero();
  }
  const vf gain = broadcast(alteration.gain);
  const lane_bits* keep = alteration.keep + j0 * kTileK;
  s += j0 * kLanes;

  const auto probability = [&](i64 key, int j) __attribute__((always_inline)) {
    const vf x = load(s + key * kTileQ + j * kLanes);
    return Weighs ? x : exp2<Compute::kExp2Degree>(fms(x, c, shift[j]));
  };
  const auto alter = [&](vf x, i64 key, int j) __attribute__((always_inline)) {
    if constexpr (!Altered)
      return x;
    else
      return mul(keep_if(keep[j * kTileK + key], x), gain);
  };
  if constexpr (Compute::kWord == 1) {
    TILEKILN_UNROLL(2) for (i64 key = begin; key < end; ++key) {
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
        const vf x = probability(key, j);
        sum[j] = add(sum[j], x);
        store(s + key * kTileQ + j * kLanes, alter(x, key, j));
      }
    }
  } else {
    i64 key = begin;
    for (; key + 1 < end; key += 2) {
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
        const vf x = probability(key, j), y = probability(key + 1, j);
        sum[j] = add(sum[j], add(x, y));
        store(s + key / 2 * kTileQ + j * kLanes, Compute::probability_word(alter(x, key, j), alter(y, key + 1, j)));
      }
    }
    if (key < end) {
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
        const vf x = probability(key, j);
        sum[j] = add(sum[j], x);
        store(s + key / 2 * kTileQ + j * kLanes, Compute::probability_word(alter(x, key, j), zero()));
      }
    }
  }
  TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) l[j] = add(l[j], sum[j]);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
