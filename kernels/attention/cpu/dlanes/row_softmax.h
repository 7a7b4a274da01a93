// SPDX-License-Identifier: MIT
// S of a block to P: masks, the running maximum and sum.
#pragma once

#include "kernels/attention/cpu/dlanes/row_start.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The keys of [key, key + keys) that row r sees.
inline Seen RowState::seen_by(int r, i64 key, int keys) const {
  const auto clamp = [&](i64 x) { return int(x < 0 ? 0 : x > keys ? keys : x); };
  const i64 row = u_.row + window_.shift + r / u_.heads;
  return {clamp(row - window_.left - key), clamp(row + window_.right + 1 - key), clamp(window_.sink - key)};
}

inline bool RowState::all_seen(i64 key, int keys) const {
  const Seen first = seen_by(0, key, keys), last = seen_by(rows_ - 1, key, keys);
  return first.last == keys && last.first <= last.sink;
}

// Raises m of row r to lanes some of which are above it; seldom after the first blocks. Returns the factor of what was summed.
inline float RowState::raise(int r, vf top) {
  const float before = m_[r];
  m_[r] = __builtin_ceilf(highest(top));
  return __builtin_exp2f(before - m_[r]);
}

inline void RowState::softmax(i64 key, int keys, bool pairs, float* alpha) {
  const float k_scale = descales_.blocked() ? descales_.k[descales_.at(key)] : 1.f;
  const float gain = descales_.blocked() ? descales_.v_blocks[descales_.at(key)] : 1.f;
  hides_ = false;
  if (plain_ && keys % kLanes == 0 && all_seen(key, keys)) {
    for (int r = 0; r < rows_; ++r) {
      float* const s = w_.s + r * kMostKeys;
      const vf top = scale_row(s, keys, broadcast(score_[r].c));
      alpha[r] = any_above(top, broadcast(m_[r])) ? raise(r, top) : 1.f;
      const vf sum = pairs ? probability_row<bf16>(s, keys, m_[r]) : probability_row<float>(s, keys, m_[r]);
      store(l_[r], fma(load(l_[r]), broadcast(alpha[r]), sum));
    }
    return;
  }
  for (int r = 0; r < rows_; ++r) {
    const i64 row = u_.row + window_.shift + r / u_.heads;
    Score x = score_[r];
    x.c *= k_scale;
    x.keys = keys;
    x.distance = row - key;
    x.bias = bias_[r] + storage_.bias_bytes * key;
    const Seen seen = seen_by(r, key, keys);
    hides_ |= seen.last < keys || seen.first > seen.sink;
    float* s = w_.s + r * kMostKeys;
    const vf top = stage_(s, x, seen, m_[r]);
    alpha[r] = any_above(top, broadcast(m_[r])) ? raise(r, top) : 1.f;
    const vf sum = pairs ? probability_row<bf16>(s, keys, m_[r], gain) : probability_row<float>(s, keys, m_[r], gain);
    store(l_[r], fma(load(l_[r]), broadcast(alpha[r]), sum));
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
