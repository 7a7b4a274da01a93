// SPDX-License-Identifier: MIT
// The elementwise stage of a block, one vector of queries at a time: from S and dP to P and dS, in words for the products.
//
//   P = 2^min(0, c S - LSE)     dS = P o (dP - D)
//   dropped:  dP' = keep o dP / (1 - p) in place of dP, and P' = keep o P / (1 - p) goes into dV
//   capped:   dS' = dS o (1 - (S' / softcap)^2), the derivative of S' = softcap tanh(S / softcap); alibi is added to S' in the
//             exponent only, as a cap far below it would not come back by a subtraction
//
// The minimum matters where rounding LSE, or c S of logits of 1e9 and more, would make P infinite.
#pragma once

#include "kernels/attention/cpu/qlanes_bwd/scratch.h"
#include "kernels/attention/cpu/qlanes_bwd/visible.h"
#include "kernels/attention/cpu/score.h"
#include "kernels/backends/cpu/compute.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

enum class Cap { none, alone, below_alibi };

struct Gradients {
  float c;        // logits, or with a null stage scores, to log2 units
  float gain;     // dropped: 1 / (1 - p)
  float uncap;    // capped: 1 / softcap
  bool store_ds;  // dS is wanted in fp32 too: dbias
};

// Words of P and dS: copies in scratch, or P and dS in fp32 where they are.
template <class Compute> struct BlockWords {
  static constexpr bool kCopies = Compute::kWord == 2;
  static constexpr int kStride = kTileQ / Compute::kWord;
  static float* p(BwdScratch& w) { return kCopies ? w.p_queries : w.s; }
  static float* ds(BwdScratch& w) { return kCopies ? w.ds_queries : w.dp; }
  static float* ds_keys(BwdScratch& w) { return kCopies ? w.ds_keys : w.dp; }
};

// P and dS of a pair.
struct PairGradients { vf p, ds; };

// Stores those of two keys, lane 0 of each at w + `at`.
template <class Compute>
TILEKILN_INLINE void put_gradients(BwdScratch& w, bool store_ds, i64 at, PairGradients x, PairGradients y) {
  if constexpr (BlockWords<Compute>::kCopies) {
    if (store_ds) {
      store(w.dp + at, x.ds);
      store(w.dp + at + kTileQ, y.ds);
    }
#if TILEKILN_PAIRS
    store_two_rows((bf16*)w.p_queries + at, kTileQ, both(x.p, y.p));
    const vh ds = both(x.ds, y.ds);
    store_two_rows((bf16*)w.ds_queries + at, kTileQ, ds);
    store(w.ds_keys + (at - at % kTileQ) / 2 + at % kTileQ, words(interleaved(ds)));
#endif
  } else {
    store(w.s + at, x.p);
    store(w.s + at + kTileQ, y.p);
    store(w.dp + at, x.ds);
    store(w.dp + at + kTileQ, y.ds);
  }
}

template <class Compute, bool Dropped, Cap kCap>
void gradients(BwdScratch& w, const Gradients& g, const Score& score, int j, const KeyRange& range,
               const Edges& edges) {
  const int q = j * kLanes;
  const vf c = broadcast(g.c), lse = load(w.lse + q), delta = load(w.delta + q), gain = broadcast(g.gain);
  const vf uncap = broadcast(g.uncap), slope = broadcast(score.slope);
  const vf distance = add(iota(), broadcast(float(score.distance + q)));  // to key 0

  const auto at = [&](i64 key, bool masked) __attribute__((always_inline)) -> PairGradients {
    const vf s = load(w.s + key * kTileQ + q);
    vf t = s;
    if constexpr (kCap == Cap::below_alibi) t = fma(abs(sub(distance, broadcast(float(key)))), slope, s);
    vf p = exp2<Compute::kExp2Degree>(min(zero(), fms(t, c, lse))), dp = load(w.dp + key * kTileQ + q);
    if constexpr (Dropped) dp = mul(keep_if(w.keep[j * kTileK + key], dp), gain);
    vf ds = mul(p, sub(dp, delta));
    if constexpr (kCap != Cap::none) {
      const vf tanh = mul(s, uncap);
      ds = mul(ds, sub(broadcast(1.f), mul(tanh, tanh)));
    }
    if constexpr (Dropped) p = mul(keep_if(w.keep[j * kTileK + key], p), gain);
    if (masked) {
      const lane_bits lanes = key < edges.keys ? edges.lanes(q, int(key)) : lane_bits(0);
      p = keep_if(lanes, p), ds = keep_if(lanes, ds);
    }
    return {p, ds};
  };
  const auto put = [&](i64 key, bool masked) __attribute__((always_inline)) {
    put_gradients<Compute>(w, g.store_ds, key * kTileQ + q, at(key, masked), at(key + 1, masked));
  };
  for (i64 key = range.begin; key < range.all_begin; key += 2) put(key, true);
  for (i64 key = range.all_begin; key < range.all_end; key += 2) put(key, false);
  for (i64 key = range.all_end; key < range.end; key += 2) put(key, true);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
