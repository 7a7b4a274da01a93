// SPDX-License-Identifier: MIT
// The rows of a unit between the products: their state. row_start.h, row_softmax.h and row_results.h say what happens to it.
#pragma once

#include "kernels/attention/cpu/dlanes/cached_rows.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The rows of a unit between the products. Row r is query u.row + r / heads of head u.head + r % heads.
class RowState {
 public:
  RowState(const RowStorage& storage, const KvProblem& a, const KvUnit& u, const Descales& descales, RowScratch& w,
           const HeadRows& heads);

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
  void softmax(i64 key, int keys, bool pairs, float* alpha);

  // O = alpha O + P V of the keys, `v` being their addresses.
  void add_values(Values values, const char* const* v, const FetchRows* fetch, i64 key, int keys, bool pairs,
                  const float* alpha);

  // O / l, 0 for a row that sees no key;  LSE = ln(2) (m + log2 l), then -inf
  void finish(ValueOrder order) const;

 private:
  // The keys of [key, key + keys) that row r sees.
  Seen seen_by(int r, i64 key, int keys) const;
  // Tells whether every row sees all of the keys.
  bool all_seen(i64 key, int keys) const;
  // Raises m of the row to its lanes; returns the factor of what was summed.
  float raise(int r, vf top);
  void start_with(int r, float sink);

  const RowStorage& storage_;
  const KvProblem& a_;
  const KvUnit& u_;
  const Descales& descales_;
  RowScratch& w_;
  const HeadRows heads_;
  const RowStage stage_;
  const bool plain_;  // logits are scores times a number
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
