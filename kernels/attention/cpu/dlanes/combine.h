// SPDX-License-Identifier: MIT
// The second stage of split-KV: the results of the splits of a row, weighted by their share of the softmax sum.
#pragma once

#include "kernels/attention/cpu/tile.h"
#include "kernels/attention/kv_engine.h"
#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/load.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::CombineProblem;
using fmha::CombineUnit;

constexpr int kMaxSplits = 128;

// w_s = exp(lse_s - L), L = m + ln sum_s exp(lse_s - m), and kUnseen for a split that saw no key. Returns L; -inf where none did.
constexpr float kUnseen = -1.f;
TILEKILN_INLINE float split_weights(const float* lse, i64 stride, int nsplits, float* w) {
  float m = -kInfinity;
  bool seen = false;
  for (int s = 0; s < nsplits; ++s) {
    w[s] = lse[s * stride];
    seen |= !(w[s] == -kInfinity);
    if (w[s] > m) m = w[s];
  }
  for (int s = nsplits; s < round_up(nsplits, kLanes); ++s) w[s] = -kInfinity;
  vf sum = zero();
  for (int s = 0; s < nsplits; s += kLanes) {
    const vf x = seen ? exp2<5>(mul(sub(load(w + s), broadcast(m)), broadcast(kLog2e))) : zero();
    store(w + s, x);
    sum = add(sum, x);
  }
  const float l = total(sum);
  for (int s = 0; s < nsplits; s += kLanes) store(w + s, mul(load(w + s), broadcast(1 / l)));
  for (int s = 0; s < nsplits; ++s) {
    if (lse[s * stride] == -kInfinity) w[s] = kUnseen;
  }
  return seen ? m + __builtin_logf(l) : -kInfinity;
}

template <class Out> void combine(const CombineProblem& a, const CombineUnit& u) {
  alignas(64) float w[kMaxSplits];
  for (i64 row = u.row; row < u.row_end; ++row) {
    const float lse =
        split_weights(a.lse_acc + u.lse_acc_offset + u.head * a.lse_acc_head + row, a.lse_acc_split, a.nsplits, w);
    if (a.lse) a.lse[u.lse_offset + u.head * a.lse_head + row] = lse;
    const float* o = a.o_acc + u.o_acc_offset + u.head * a.o_acc_head + row * a.o_acc_row;
    Out* out = (Out*)a.out + u.out_offset + u.head * a.out_head + row * a.out_row;
    for (int d = 0; d < a.hdim_v; d += kLanes) {
      vf sum = zero();
      for (int s = 0; s < a.nsplits; ++s) {
        // A split without a key has nothing to say, whatever its rows hold.
        if (w[s] != kUnseen) sum = fma(widen_some(o + s * a.o_acc_split + d, a.hdim_v - d), broadcast(w[s]), sum);
      }
      narrow_some((Out*)out + d, mul(sum, broadcast(a.out_scale)), a.hdim_v - d);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
