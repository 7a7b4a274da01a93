// SPDX-License-Identifier: MIT
// Absorbed attention with lanes along rows, the pairs of a query and a head: a tile of 64 against the keys of its unit.
//
//   S^T[key][row] = softmax_scale K Q^T     P = 2^(c (S - m))     O^T[d][row] = alpha O^T + V^T P
//
// K lies in the cache or, where it must be converted, gathered or padded, in a copy; V is the same rows, or their pairs of keys.
#pragma once

#include "kernels/attention/cpu/qlanes/block.h"
#include "kernels/attention/fmha_mla_decode/cpu/few_rows.h"
#include "kernels/attention/fmha_mla_decode/cpu/latent.h"
#include "kernels/attention/fmha_mla_decode/cpu/next_rows.h"
#include "kernels/attention/fmha_mla_decode/cpu/scores.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

template <class Compute> class LatentTile {
 public:
  LatentTile(const LatentStorage& storage, const mla::Problem& a, const mla::Unit& u, LatentScratch& w)
      : storage_(storage), a_(a), u_(u), w_(w) {
    vectors_ = (u.rows + kLanes - 1) / kLanes;
    words_ = (a.hdim_q + Compute::kWord - 1) / Compute::kWord;
    k_stride_ = k_copy_stride(words_);
    o_rows_ = round_up(a.hdim_v, 4);
    few_ = kFewRows && vectors_ == 1;
    columns_ = round_up(a.hdim_v, kFewColumns);
    for (int j = 0; j < vectors_; ++j) {
      state_.m[j] = broadcast(kLowest);
      state_.l[j] = zero();
      state_.shift[j] = rounded(mul(state_.m[j], broadcast(kLog2e)));
      state_.started[j] = false;
    }
  }

  void run() {
    load_queries();
    const int first = u_.row / a_.nhead, last = (u_.row + u_.rows - 1) / a_.nhead;
    int key = blocks(u_.key_begin, end_of(first), 0);
    for (int query = first + 1; query <= last && a_.causal; ++query)
      key = blocks(key, end_of(query), query * a_.nhead - u_.row);
    finish();
  }

 private:
  // f(row of the tile, query, head)
  template <class F> void each_row(F&& f) const {
    int query = u_.row / a_.nhead, head = u_.row % a_.nhead;
    for (int i = 0; i < u_.rows; ++i) {
      f(i, query, head);
      if (++head == a_.nhead) head = 0, ++query;
    }
  }

  void load_queries() {
    const i64 bytes = i64(a_.hdim_q) * storage_.q_bytes;
    char* const rows = (char*)w_.k;
    each_row([&](int i, int query, int head) {
      const i64 at = u_.batch * a_.q_batch + query * a_.q_row + head * a_.q_head;
      __builtin_memcpy(rows + i * bytes, (const char*)a_.q + at * storage_.q_bytes, bytes);
    });
    storage_.load_q(w_.q, rows, a_.hdim_q, u_.rows, a_.hdim_q);
    if constexpr (kFewRows) {
      if (!few_) return;
      make_fours(w_.q, words_);
      __builtin_memset(w_.o, 0, sizeof(float) * u_.rows * columns_);
      state_.started[0] = true;
    }
  }

  int end_of(int query) const {
    const i64 end = a_.causal ? i64(u_.seqlen_k) - a_.seqlen_q + query + 1 : u_.seqlen_k;
    return int(end < u_.key_begin ? u_.key_begin : end > u_.key_end ? u_.key_end : end);
  }

  // The keys [key, end), which the rows of the tile from `row` on see. Returns the end.
  int blocks(int key, int end, int row) {
    for (; key < end; key += kTileK) block(key, end - key < kTileK ? end - key : kTileK, row);
    return end;
  }

  // f(address, first key of the block, keys) for runs of rows that lie together.
  template <class F> void runs(int key, int keys, F&& f) const {
    for (int i = 0; i < keys;) {
      const int page = (key + i) / a_.page_size, at = (key + i) % a_.page_size;
      const int left = a_.page_size - at, count = left < keys - i ? left : keys - i;
      const i64 number = a_.table ? a_.table[u_.batch * a_.table_row + page] : u_.batch;
      f((const char*)a_.cache + (number * a_.cache_page + at * a_.cache_row) * storage_.cache_bytes, i, count);
      i += count;
    }
  }

  void block(int key, int keys, int row) {
    const Keys rows = rows_of(key, keys);
    fetch_next(key + keys, rows.count);
    const int j = row / kLanes;
    const lane_bits hidden = lane_bits((1u << row % kLanes) - 1);
    scores(rows, keys, j, hidden);
    vf alpha[kVectors];
    weigh(keys, j, vectors_ - j, alpha);

    ValueRows v = {(const float*)rows.base, rows.stride / i64(sizeof(float))};
#if TILEKILN_PAIRS
    if constexpr (Compute::kWord == 2) {
      pair_rows(w_.v, rows.base, rows.stride, keys, a_.hdim_v);
      v = {w_.v, pair_stride(a_.hdim_v)};
    }
#endif
    const int key_words = (keys + Compute::kWord - 1) / Compute::kWord;
    if constexpr (kFewRows) {
      if (few_) {
        alignas(64) float factors[kLanes];
        store(factors, alpha[0]);
        return every_row_value<Compute>(row, u_.rows, columns_, w_.s, v.base, v.stride, key_words, w_.o, columns_,
                                        factors, [&]() __attribute__((always_inline)) { next_.step(); });
      }
    }
    if (hidden) keep_hidden(j);
    const bool started = state_.start(j, vectors_, w_.o, o_rows_);
    vector_groups(j, vectors_, [&]<int N>(int i) __attribute__((always_inline)) {
      value_block<Compute, N>(w_.s + i * kLanes, v, 0, key_words, w_.o + i * kLanes, o_rows_,
                              started ? alpha + i : nullptr,
                              [&](int, int) __attribute__((always_inline)) { next_.step(); });
    });
    if (hidden) restore_hidden(j, hidden);
  }

  // The rows of a block: as they lie, if they are words that need no conversion, in one run of a multiple of 4; else a copy, with rows
  // of 0 up to a multiple of 4. `count` is that multiple.
  Keys rows_of(int key, int keys) {
    const int count = round_up(keys, 4);
    Keys there = {nullptr, a_.cache_row * storage_.cache_bytes, count};
    if (storage_.direct && count == keys && a_.hdim_q % Compute::kWord == 0 && there.stride % i64(sizeof(float)) == 0 &&
        a_.hdim_v % (few_ ? kFewColumns : 4) == 0 && (!few_ || words_ % 4 == 0)) {
      runs(key, keys, [&](const char* from, int, int run) { there.base = run == keys ? from : nullptr; });
      if (there.base) return there;
    }
    runs(key, keys, [&](const char* from, int i, int run) {
      storage_.load_rows(w_.k + i64(i) * k_stride_, from, a_.cache_row, run, a_.hdim_q);
    });
    for (int i = keys; i < count; ++i) __builtin_memset(w_.k + i64(i) * k_stride_, 0, sizeof(float) * k_stride_);
    return {(const char*)w_.k, i64(sizeof(float)) * k_stride_, count};
  }

  // Rows of the next block, which is as long as this one or shorter.
  void fetch_next(int key, int count) {
    const int passes = (words_ + kPassWords - 1) / kPassWords,
              few_passes = (words_ + kFewPassWords - 1) / kFewPassWords;
    next_.begin(row_bytes(),
                few_ ? few_passes * count / 4 + columns_ / kFewColumns : passes * (count / 16) + o_rows_ / 16 + 1);
    const int keys = u_.key_end - key < kTileK ? u_.key_end - key : kTileK;
    if (keys <= 0) return;
    runs(key, keys, [&](const char* from, int, int run) {
      for (int i = 0; i < run; ++i) next_.add(from + i * a_.cache_row * storage_.cache_bytes);
    });
  }
  i64 row_bytes() const {
    return a_.storage == mla::Storage::bf16_fp8 ? mla::kFp8RowBytes : i64(a_.hdim_q) * storage_.cache_bytes;
  }

  // S of the vectors from j on; -inf where the first of them does not see the block.
  void scores(const Keys& rows, int keys, int j, lane_bits hidden) {
    const auto products = [&]<int N>(int i) __attribute__((always_inline)) {
      score_passes<Compute, N>(rows, rows.count, words_, w_.q + i * kLanes, w_.s + i * kLanes,
                               [&]() __attribute__((always_inline)) { next_.step(); });
    };
    if constexpr (kFewRows) {
      if (few_)
        score_fours<Compute>(rows, rows.count, words_, w_.q, w_.s,
                             [&]() __attribute__((always_inline)) { next_.step(); });
      else
        vector_groups(j, vectors_, products);
    } else {
      vector_groups(j, vectors_, products);
    }
    const vf scale = broadcast(a_.softmax_scale);
    for (int i = j; i < vectors_; ++i) {
      vf maximum = state_.m[i];
      for (int key = 0; key < keys; ++key) {
        float* const s = w_.s + key * kTileQ + i * kLanes;
        vf x = mul(load(s), scale);
        if (i == j) x = select(hidden, broadcast(-kInfinity), x);
        store(s, x);
        maximum = max(maximum, x);
      }
      maximum_[i] = maximum;
    }
  }

  // P over S, and what O is multiplied with.
  void weigh(int keys, int j, int vectors, vf* alpha) {
    vf c = broadcast(kLog2e), cm[kVectors];
    bool far = false;
    for (int i = j; i < vectors_; ++i) far |= is_far(maximum_[i], c);
    for (int i = j; i < vectors_; ++i)
      cm[i] = raise_maximum(state_.m[i], state_.l[i], state_.shift[i], alpha[i], maximum_[i], c, far);
    if (far) {
      subtract_maximum(w_.s, j, vectors_, 0, keys, state_.m, c);
      c = broadcast(1.f);
    }
    vector_groups(j, j + vectors, [&]<int N>(int i) __attribute__((always_inline)) {
      probabilities<Compute, false, N>(w_.s, i, 0, keys, c, cm + i, state_.l + i, {nullptr, 1.f});
    });
  }

  // P of a lane that does not see a key is 0, but 0 times a V that is no number is NaN: such lanes keep their O.
  void keep_hidden(int j) {
    for (int d = 0; d < o_rows_; ++d)
      store(w_.hidden + d * kLanes, state_.started[j] ? load(w_.o + d * kTileQ + j * kLanes) : zero());
  }
  void restore_hidden(int j, lane_bits hidden) {
    for (int d = 0; d < o_rows_; ++d) {
      float* const o = w_.o + d * kTileQ + j * kLanes;
      store(o, select(hidden, load(w_.hidden + d * kLanes), load(o)));
    }
  }

  // O = O^T / l, 0 for a row that sees no key;  LSE = m + ln l, then -inf.
  void finish() {
    alignas(64) float factor[kTileQ], m[kTileQ], l[kTileQ];
    for (int j = 0; j < vectors_; ++j) {
      store(m + j * kLanes, state_.m[j]);
      store(l + j * kLanes, state_.l[j]);
      if (!few_ && !state_.started[j]) State::clear(j, w_.o, o_rows_);
    }
    for (int i = 0; i < vectors_ * kLanes; ++i) factor[i] = l[i] == 0 ? 0.f : 1 / l[i];
    const StoreRow store_one = u_.partial ? store_row<float> : storage_.store_row;
    char* const rows = (char*)w_.k;
    const i64 element = u_.partial ? i64(sizeof(float)) : storage_.q_bytes, bytes = a_.hdim_v * element;
    if (!few_) (u_.partial ? store_out<float> : storage_.store_out)(rows, a_.hdim_v, w_.o, factor, u_.rows, a_.hdim_v);
    each_row([&](int i, int query, int head) {
      char* const out = (char*)u_.out + (query * u_.out_row + head * u_.out_head) * element;
      if (few_)
        store_one(out, w_.o + i64(i) * columns_, factor[i], a_.hdim_v);
      else
        __builtin_memcpy(out, rows + i * bytes, bytes);
      if (u_.lse) u_.lse[head * u_.lse_head + query] = l[i] == 0 ? -kInfinity : m[i] + __builtin_logf(l[i]);
    });
  }

  const LatentStorage& storage_;
  const mla::Problem& a_;
  const mla::Unit& u_;
  LatentScratch& w_;
  NextRows next_;
  State state_;
  vf maximum_[kVectors];
  int vectors_, words_, k_stride_, o_rows_;
  bool few_;     // one vector of rows, of an ISA that has products of fours
  int columns_;  // of a row of O then
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
