// What: the rows of a unit between the products, their masks, softmax and results.
#pragma once

#include "kernels/attention/cpu/dlanes/cached_rows.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE RowStage row_stage_of(const KvProblem& a, const RowStorage& storage) {
  if (a.features.bias == Bias::elementwise) return storage.bias;
  if (a.features.bias == Bias::alibi)
    return a.features.softcap ? score_row<RowAlibi<SoftCapped>> : score_row<RowAlibi<Scaled>>;
  return a.features.softcap ? score_row<RowMap<SoftCapped>> : score_row<RowMap<Scaled>>;
}

// The rows of a unit between the products. Row r is query u.row + r / heads of head u.head + r % heads.
class RowState {
 public:
  RowState(const RowStorage& storage, const KvProblem& a, const KvUnit& u, const Descales& descales, RowScratch& w,
           const HeadRows& heads, bool twos)
      : storage_(storage),
        a_(a),
        u_(u),
        descales_(descales),
        w_(w),
        heads_(heads),
        twos_(twos),
        stage_(row_stage_of(a, storage)),
        window_(fmha::window_of(a, u)),
        rows_(u.rows * u.heads) {
    for (int r = 0; r < rows_; ++r) {
      const i64 row = u.row + r / u.heads, head = u.head + r % u.heads;
      load_q(r, (const char*)a.q + storage.q_bytes * (u.q_offset + head * a.q_head + row * a.q_row));
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

  i64 begin() const { return window_.sink > u_.key_begin ? u_.key_begin : begin_; }
  i64 end() const { return end_; }

  // The block of at most `most` keys that begins at `key` or behind it; false: there is none. It has one page scale.
  bool block(i64& key, int& keys, int most) const {
    if (key >= window_.sink && key < begin_) key = begin_;
    if (key >= end_) return false;
    keys = end_ - key < most ? int(end_ - key) : most;
    if (key < begin_ && keys > window_.sink - key) keys = int(window_.sink - key);
    if (descales_.blocked() && keys > descales_.keys - key % descales_.keys)
      keys = int(descales_.keys - key % descales_.keys);
    return true;
  }

  // Replaces S by P, in bf16 where `pairs`, and sets alpha[row], the factor of O before P V is added to it.
  void softmax(i64 key, int keys, bool pairs, float* alpha) {
    const float k_scale = descales_.blocked() ? descales_.k[descales_.at(key)] : 1.f;
    const float gain = descales_.blocked() ? descales_.v_blocks[descales_.at(key)] : 1.f;
    hides_ = false;
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
      alpha[r] = 1;
      if (any_above(top, broadcast(m_[r]))) {  // seldom after the first blocks
        const float m = __builtin_ceilf(highest(top));
        alpha[r] = __builtin_exp2f(m_[r] - m);
        m_[r] = m;
      }
      const vf sum = pairs ? probability_row<bf16>(s, keys, m_[r], gain) : probability_row<float>(s, keys, m_[r], gain);
      store(l_[r], fma(load(l_[r]), broadcast(alpha[r]), sum));
    }
  }

  // O = alpha O + P V of the keys, `v` being their addresses. What V of a key holds does not reach rows that do not see it: their P is
  // 0, but 0 times NaN is not. Should O be no number afterwards, it is put back and the keys come one at a time.
  void add_values(Values values, const char* const* v, const FetchRows* fetch, i64 key, int keys, bool pairs,
                  const float* alpha) {
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

  // O / l, 0 for a row that sees no key;  LSE = ln(2) (m + log2 l), then -inf
  void finish(ValueOrder order) const {
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

 private:
  // Which of the keys [key, key + keys) row r sees.
  Seen seen_by(int r, i64 key, int keys) const {
    const auto clamp = [&](i64 x) { return int(x < 0 ? 0 : x > keys ? keys : x); };
    const i64 row = u_.row + window_.shift + r / u_.heads;
    return {clamp(row - window_.left - key), clamp(row + window_.right + 1 - key), clamp(window_.sink - key)};
  }

  // A sink logit is one more key, seen first, whose V is 0. One that is no number makes l none.
  void start_with(int r, float sink) {
    if (sink == -kInfinity) return;
    if (!(__builtin_fabsf(sink) < kInfinity)) {
      l_[r][0] = kNan;
      return;
    }
    const float logit = sink * kLog2e, least = logit < kLowest ? kLowest : logit,
                t = least > -kLowest ? -kLowest : least;
    m_[r] = __builtin_ceilf(t);
    l_[r][0] = __builtin_exp2f(t - m_[r]);
  }

  // A row of Q into scratch. Rows in twos are interleaved by half registers: half a register of the first row, then half a
  // register of the second.
  void load_q(int r, const void* from) {
    const int in_group = r % heads_.group;
    if (!twos_ || (heads_.heads_k > 1 && !heads_.by_head) || (heads_.group % 2 && in_group == heads_.group - 1))
      return storage_.load_q(w_.q + r * heads_.q_width, from, 0, 1, a_.hdim_q);
    constexpr int kHalf = kLanes / 2;
    alignas(64) float words[kMaxHdim];
    storage_.load_q(words, from, 0, 1, a_.hdim_q);
    float* const to = w_.q + (r - in_group % 2) * heads_.q_width + in_group % 2 * kHalf;
    for (int i = 0; i < heads_.q_width / kHalf; ++i)
      __builtin_memcpy(to + i * kLanes, words + i * kHalf, kHalf * sizeof(float));
  }

  const RowStorage& storage_;
  const KvProblem& a_;
  const KvUnit& u_;
  const Descales& descales_;
  RowScratch& w_;
  const HeadRows heads_;
  const bool twos_;
  const RowStage stage_;
  const fmha::Window window_;
  const int rows_;
  i64 begin_, end_;
  bool hides_ = false;  // some row does not see some key of the block
  float m_[kMaxStreamRows];
  alignas(64) float l_[kMaxStreamRows][kLanes];  // of which l is the sum
  Score score_[kMaxStreamRows];
  const char* bias_[kMaxStreamRows];
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
