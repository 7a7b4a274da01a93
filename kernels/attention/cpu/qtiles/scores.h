// SPDX-License-Identifier: MIT
// Scores of a pass on their way to powers, a row of 32 keys at a time. Plain ones stay as the product left them: their scale is a factor of
// the powers. Others become logits in log2 units: c s, soft-capped or not, with alibi or a bias; and powers may be dropped.
#pragma once

#include "kernels/attention/cpu/dropout.h"
#include "kernels/attention/cpu/qlanes/forward.h"
#include "kernels/attention/cpu/qtiles/storage.h"
#include "kernels/backends/cpu/amx/rows.h"
#include "kernels/backends/cpu/tanh.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

struct PlainScores {
  static constexpr bool kPlain = true, has_alibi = false;
  i64 distance = 0;
  TILEKILN_INLINE void operator()(int, i64, uint32_t, vf&, vf&, unsigned&) const {}
};

class ChangedScores {
 public:
  static constexpr bool kPlain = false;

  // c: the scale in log2 units. first, rows: those of the pass, from the unit's first; shifted: where that one stands among the keys.
  template <class Problem, class Unit>
  ChangedScores(const Problem& a, const Unit& u, float scale, float c, int first, int rows, i64 shifted)
      : has_alibi(a.features.bias == Bias::alibi),
        distance(shifted + first),
        c_(broadcast(c)),
        capped_(a.features.softcap),
        to_cap_(broadcast(a.features.softcap ? __builtin_fabsf(scale) / a.softcap : 0)),
        tanh_(a.features.softcap ? a.softcap * kLog2e : 1),
        slope_(broadcast(has_alibi ? -kLog2e * a.alibi_slopes[u.alibi_offset + u.head] : 0)),
        last_row_(rows - 1),
        drops_(a.features.dropout),
        seed_(a.rng_seed),
        offset_(a.rng_offset + (u64(u.batch) * a.nhead_q + u.head) * 64),
        row32_(uint32_t(u.row + first) / 32),
        threshold_(core::dropout_threshold(a.dropout_p)) {
    if (a.features.bias != Bias::elementwise) return;
    bias_ = (const bf16*)a.bias + u.bias_offset + u.head * a.bias_head + (u.row + first) * a.bias_row;
    bias_row_ = a.bias_row;
  }

  // Logits of row i and of the keys from `key` on, of which `there` exist. odd: gets bits where one is far or no number.
  TILEKILN_INLINE void operator()(int i, i64 key, uint32_t there, vf& first, vf& second, unsigned& odd) const {
    if (capped_)
      first = tanh_(mul(first, to_cap_)), second = tanh_(mul(second, to_cap_));
    else
      first = mul(first, c_), second = mul(second, c_);
    if (has_alibi) {
      const vf away = sub(broadcast(float(distance + i - key)), iota());
      first = fma(abs(away), slope_, first), second = fma(abs(sub(away, broadcast(16.f))), slope_, second);
    }
    if (bias_) {
      vf x, y;
      widen_there(bias_ + (i < last_row_ ? i : last_row_) * bias_row_ + key, there, x, y);
      first = fma(x, broadcast(kLog2e), first), second = fma(y, broadcast(kLog2e), second);
      odd |= not_below(first, second, kFar);
    }
  }

  bool drops() const { return drops_; }
  // Bits of rows, [16 rows][32 keys], for the keys from `key` on, a multiple of 32.
  void keep(uint16_t* to, i64 key) const {
    alignas(64) lane_bits words[2 * kTileK];
    for (int column = 0; column < 32; column += kCounters)
      keep_patch(words, 0, column, seed_, offset_ + u64(column), row32_, uint32_t(key / 32), threshold_);
    for (int half = 0; half < 2; ++half)
      store((float*)(to + 32 * half), tilekiln::cpu::words(in_power_order(words + half * kTileK)));
  }

  const bool has_alibi;
  const i64 distance;  // of the first row from key 0

 private:
  const vf c_;
  const bool capped_;
  const vf to_cap_;
  const Tanh tanh_;
  const vf slope_;
  const int last_row_;
  const bool drops_;
  const u64 seed_, offset_;
  const uint32_t row32_;
  const uint8_t threshold_;
  const bf16* bias_ = nullptr;
  i64 bias_row_ = 0;
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
