// SPDX-License-Identifier: MIT
// P V into O, past keys whose V is no number; O and LSE into memory.
#pragma once

#include "kernels/attention/cpu/dlanes/row_softmax.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// V of a key must not reach rows that do not see it: their P is
// 0, but 0 times NaN is not. Should O be no number afterwards, it is put back and the keys come one at a time.
inline void RowState::add_values(Values values, const char* const* v, const FetchRows* fetch, i64 key, int keys,
                                 bool pairs, const float* alpha) {
  if (!hides_) return values(w_.o, v, fetch, keys, w_.s, alpha, heads_);
  const int size = rows_ * heads_.o_width;
  __builtin_memcpy(w_.o_before, w_.o, size * sizeof(float));
  values(w_.o, v, fetch, keys, w_.s, alpha, heads_);
  vf sum = zero();
  for (int i = 0; i < size; i += kLanes) sum = fma(load(w_.o + i), zero(), sum);
  if (!any_above(abs(sum), zero())) return;
  __builtin_memcpy(w_.o, w_.o_before, size * sizeof(float));
  values(w_.o, v, fetch, 0, w_.s, alpha, heads_);  // alpha O
  float same[kMaxStreamRows];
  for (int r = 0; r < rows_; ++r) {
    same[r] = 1;
    // P is read two keys at a time, the last one with what follows it.
    if (pairs) __builtin_memset((bf16*)(w_.s + r * kMostKeys) + keys, 0, sizeof(bf16));
  }
  for (int i = 0; i < keys; ++i) {
    __builtin_memcpy(w_.o_before, w_.o, size * sizeof(float));
    FetchRows nothing[kMaxStreamRows];
    for (int h = 0; h < heads_.heads_k; ++h) nothing[h] = {u64(v[i]), 0};
    const float* const p = pairs ? (const float*)((const bf16*)w_.s + i) : w_.s + i;
    values(w_.o, v + i, nothing, 1, p, same, heads_);
    for (int r = 0; r < rows_; ++r) {
      const Seen seen = seen_by(r, key, keys);
      if (i < seen.last && (i < seen.sink || i >= seen.first)) continue;
      __builtin_memcpy(w_.o + r * heads_.o_width, w_.o_before + r * heads_.o_width, heads_.o_width * sizeof(float));
    }
  }
}

inline void RowState::finish(ValueOrder order) const {
  for (int r = 0; r < rows_; ++r) {
    const i64 row = u_.row + r / u_.heads, head = u_.head + r % u_.heads;
    const float l = total(load(l_[r]));
    char* out = (char*)a_.out + storage_.out_bytes * (u_.out_offset + head * a_.out_head + row * a_.out_row);
    storage_.store_row(out, w_.o + r * heads_.o_width, l == 0 ? 0.f : descales_.v / l, a_.hdim_v, order);
    if (a_.features.lse) {
      a_.lse[u_.lse_offset + head * a_.lse_head + row] = l == 0 ? -kInfinity : kLn2 * m_[r] + __builtin_logf(l);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
