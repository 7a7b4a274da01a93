// SPDX-License-Identifier: MIT
// Rows before their first key: Q, the score variant, sink logits, the keys that they see.
#pragma once

#include "kernels/attention/cpu/dlanes/row_state.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE RowStage row_stage_of(const KvProblem& a, const RowStorage& storage) {
  if (a.features.bias == Bias::elementwise) return storage.bias;
  if (a.features.bias == Bias::alibi)
    return a.features.softcap ? score_row<RowAlibi<SoftCapped>> : score_row<RowAlibi<Scaled>>;
  return a.features.softcap ? score_row<RowMap<SoftCapped>> : score_row<RowMap<Scaled>>;
}

// A sink logit is one more key, seen first, whose V is 0. One that is no number makes l none.
inline void RowState::start_with(int r, float sink) {
  if (sink == -kInfinity) return;
  if (!(__builtin_fabsf(sink) < kInfinity)) {
    l_[r][0] = kNan;
    return;
  }
  const float logit = sink * kLog2e, least = logit < kLowest ? kLowest : logit, t = least > -kLowest ? -kLowest : least;
  m_[r] = __builtin_ceilf(t);
  l_[r][0] = __builtin_exp2f(t - m_[r]);
}

inline RowState::RowState(const RowStorage& storage, const KvProblem& a, const KvUnit& u, const Descales& descales,
                          RowScratch& w, const HeadRows& heads)
    : storage_(storage),
      a_(a),
      u_(u),
      descales_(descales),
      w_(w),
      heads_(heads),
      stage_(row_stage_of(a, storage)),
      plain_(a.features.bias == Bias::none && !a.features.softcap && !descales.blocked()),
      window_(fmha::window_of(a, u)),
      rows_(u.rows * u.heads) {
  for (int r = 0; r < rows_; ++r) {
    const i64 row = u.row + r / u.heads, head = u.head + r % u.heads;
    storage.load_q(w.q + r * heads.q_width,
                   (const char*)a.q + storage.q_bytes * (u.q_offset + head * a.q_head + row * a.q_row), 0, 1, a.hdim_q);
    score_[r] = {kLog2e, a.softmax_scale * descales.q * kLog2e, a.softcap * kLog2e, 0.f, nullptr, 0, 1, 0, 0};
    if (a.features.bias == Bias::alibi) score_[r].slope = -kLog2e * a.alibi_slopes[u.alibi_offset + head];
    bias_[r] = (const char*)a.bias + storage.bias_bytes * (u.bias_offset + head * a.bias_head + row * a.bias_row);
    m_[r] = kLowest;
    store(l_[r], zero());
    if (a.features.sink && a.sink && u.first_split) start_with(r, a.sink[head]);
  }
  __builtin_memset(w.o, 0, rows_ * heads.o_width * sizeof(float));
  // The keys that some row sees: [begin, end), and those below the sink.
  const i64 shifted = u.row + window_.shift, last_key = shifted + u.rows + window_.right;
  const i64 first_key = shifted - window_.left;
  end_ = u.key_end < last_key ? u.key_end : last_key;
  begin_ = first_key < u.key_begin ? u.key_begin : first_key;
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
