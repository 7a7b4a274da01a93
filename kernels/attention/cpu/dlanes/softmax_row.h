// SPDX-License-Identifier: MIT
// Scores of one row of a block, lanes along keys: into logits in log2 units by a score variant, masked, with their maximum; then P.
#pragma once

#include "kernels/attention/cpu/score.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The row sees the block's keys [first, last) and those below sink, all of them before last <= the block's keys.
struct Seen {
  int first, last, sink;

  TILEKILN_INLINE bool all(int key) const { return first <= key && key + kLanes <= last; }
  TILEKILN_INLINE lane_bits lanes(int key) const {
    const auto below = [&](int end) {
      const int n = (end < last ? end : last) - key;
      return n <= 0 ? 0u : n >= kLanes ? (1u << kLanes) - 1 : (1u << n) - 1;
    };
    return lane_bits((below(last) & ~below(first)) | below(sink));
  }
};

// s[0, keys): scores to log2 units, -inf where not seen. Returns lanes whose maximum is the larger of m and theirs.
using RowStage = vf (*)(float* s, const Score&, const Seen&, float m);

template <class Variant> vf score_row(float* s, const Score& score, const Seen& seen, float m) {
  const Variant variant(score);
  vf top = broadcast(m);
  for (int key = 0; key < score.keys; key += kLanes) {
    vf t = variant(load(s + key), key);
    if (!seen.all(key)) t = select(seen.lanes(key), t, broadcast(-kInfinity));
    store(s + key, t);
    top = max(top, t);
  }
  return top;
}

// Maps of score.h, whose lanes do not matter.
template <class Lanewise> struct RowMap : Lanewise {
  using Lanewise::Lanewise;
  TILEKILN_INLINE vf operator()(vf s, int) const { return Lanewise::operator()(s); }
};

template <class Lanewise> struct RowAlibi {
  const Score& score;
  const Lanewise variant;
  explicit RowAlibi(const Score& score) : score(score), variant(score) {}
  TILEKILN_INLINE vf operator()(vf s, int key) const {
    const vf distance = sub(broadcast(float(score.distance - key)), iota());
    return fma(abs(distance), broadcast(score.slope), variant(s));
  }
};

// A finite bias masks nothing: what passes the end of fp32 in log2 units stays there.
template <class T> struct RowBias {
  const Score& score;
  explicit RowBias(const Score& score) : score(score) {}
  TILEKILN_INLINE vf operator()(vf s, int key) const {
    const vf bias = widen_some((const T*)score.bias + key, score.keys - key);
    const vf least = min(broadcast(kLowest), bias);  // -inf where the bias is
    return max(least, fma(bias, broadcast(score.unit), mul(s, broadcast(score.c))));
  }
};

// s[0, keys): to logits c s, where every key is seen, keys being a multiple of kLanes; returns the highest of each lane. They are stored,
// as m is taken from them: c s - m in one rounding would pass 0 by as much as the product was rounded, thousands at logits of 1e11.
TILEKILN_INLINE vf scale_row(float* s, int keys, vf c) {
  vf top = mul(load(s), c);
  store(s, top);
  for (int key = kLanes; key < keys; key += kLanes) {
    const vf t = mul(load(s + key), c);
    store(s + key, t);
    top = max(top, t);
  }
  return top;
}
template <class T> TILEKILN_INLINE vf probability_row(float* s, int keys, float m) {
  const vf top = broadcast(m);
  vf sum = zero();
  TILEKILN_UNROLL(2) for (int key = 0; key < keys; key += kLanes) {
    const vf p = exp2<5>(sub(load(s + key), top));
    sum = add(sum, p);
    narrow((T*)s + key, p);
  }
  return sum;
}

// P = gain 2^(s - m) in place, as T; returns lanes whose sum is that of 2^(s - m).
template <class T> TILEKILN_INLINE vf probability_row(float* s, int keys, float m, float gain) {
  const vf top = broadcast(m), factor = broadcast(gain);
  vf sum = zero();
  for (int key = 0; key < keys; key += kLanes) {
    const vf p = exp2<5>(sub(load(s + key), top));
    sum = add(sum, p);
    narrow((T*)s + key, mul(p, factor));
  }
  return sum;
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
