// SPDX-License-Identifier: MIT
// Backward attention with lanes along queries. One chunk of keys against all queries that see it:
//
//   for each query head of the group and each tile of 64 queries:
//     for each block of 64 keys of the chunk:  S, dP, P, dS;  dV += P^T dO;  dK += dS^T Q;  dQ += dS K     (block.h)
//     dq_acc += dQ
//   dk = softmax_scale dK, dv = dV
//
// K, V and the sums of dK and dV stay in L2 for the whole unit, Q and dO are packed once per tile. As in the forward,
// everything an instance chooses is decided here, per tile or per block: compiled once per Compute.
#pragma once

#include <sched.h>

#include "kernels/attention/cpu/dropout.h"
#include "kernels/attention/cpu/qlanes_bwd/block.h"
#include "kernels/attention/cpu/qlanes_bwd/dbias.h"
#include "kernels/attention/cpu/qlanes_bwd/rows.h"
#include "kernels/attention/cpu/storage.h"
#include "kernels/attention/window.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::Bias;
using fmha::BwdUnit;

using StoreRows = void (*)(void* to, i64 stride, const float* from, i64 from_stride, float factor, int rows, int width);

// Functions and sizes that depend on the storage type.
struct BwdStorage {
  LoadQ load_transposed;  // rows to words along the head dim, transposed
  LoadRows load_rows;     // rows in words along the head dim
  LoadRows load_vectors;  // rows whose words run along the rows
  StoreRows store_rows;
  StoreDbias store_dbias;
  ScoreStage bias;
  int bytes;  // of an element
  // Functions of an operator's own: its gradients, and its mask, which may be null. Such an operator goes without dropout.
  GradientStage own_gradients = nullptr;
  MaskStage own_mask = nullptr;
};

template <class Compute> BwdStrides strides_of(const BwdProblem& a) {
  BwdStrides t;
  t.q_words = (a.hdim_q + Compute::kWord - 1) / Compute::kWord;
  t.v_words = (a.hdim_v + Compute::kWord - 1) / Compute::kWord;
  t.q_vectors = (a.hdim_q + kLanes - 1) / kLanes;
  t.v_vectors = (a.hdim_v + kLanes - 1) / kLanes;
  t.k = Compute::kWord == 1 ? v_copy_stride(a.hdim_q) : k_copy_stride(t.q_words);
  t.v = k_copy_stride(t.v_words);
  t.q = v_copy_stride(a.hdim_q);
  t.dout = v_copy_stride(a.hdim_v);
  return t;
}

inline ScoreStage bwd_stage_of(const BwdProblem& a, const BwdStorage& storage) {
  if (a.features.bias == Bias::elementwise) return storage.bias;
  if (a.features.softcap) return score_map<SoftCapped>;  // alibi comes later: gradients.h
  return a.features.bias == Bias::alibi ? score_alibi<Scaled> : nullptr;
}

// A spin lock over one tile of dq_acc: it is held for the time of a copy, some 1 % of a tile's work.
class TileLock {
 public:
  explicit TileLock(unsigned char* lock) : lock_(lock) {
    while (lock_ && __atomic_test_and_set(lock_, __ATOMIC_ACQUIRE)) sched_yield();
  }
  ~TileLock() {
    if (lock_) __atomic_clear(lock_, __ATOMIC_RELEASE);
  }
  TileLock(const TileLock&) = delete;

 private:
  unsigned char* lock_;
};

inline void put_dq(Into into, float* to, const float* from, i64 from_stride, int rows, int hdim) {
  for (int i = 0; i < rows; ++i, to += hdim, from += from_stride) {
    int d = 0;
    if (into == Into::overwrite) {
      for (; d + kLanes <= hdim; d += kLanes) store_unaligned(to + d, load(from + d));
      for (; d < hdim; ++d) to[d] = from[d];
    } else {
      for (; d + kLanes <= hdim; d += kLanes) store_unaligned(to + d, add(load_unaligned(to + d), load(from + d)));
      for (; d < hdim; ++d) to[d] += from[d];
    }
  }
}

// Forms and sums that an engine whose products are not these has beside the scratch's: none. Called as the keys of a unit, of which there
// are `keys`, and the rows of a tile lie in scratch; and when dQ of the tile, dK and dV of the unit are wanted there.
template <class Compute> void keys_loaded(BwdBlock&, int) {}
template <class Compute> void rows_loaded(BwdBlock&, int) {}
template <class Compute> void put_row_sums(BwdBlock&, int) {}
template <class Compute> void put_key_sums(BwdBlock&, int) {}

template <class Compute> class Backward {
 public:
  Backward(const BwdStorage& storage, const BwdProblem& a, const BwdUnit& u, BwdScratch& w)
      : storage_(storage),
        a_(a),
        u_(u),
        w_(w),
        keys_(u.key_end - u.key),
        head_k_(u.head / (a.nhead_q / a.nhead_k)),
        window_(fmha::window_of(a, u)),
        t_(strides_of<Compute>(a)) {}

  void run() {
    if (keys_ <= 0) return;
    load_keys();
    BwdBlock b = block();
    keys_loaded<Compute>(b, keys_);
    for (int head = u_.head; head < u_.head_end; ++head) {
      if (a_.features.bias == Bias::alibi) b.score.slope = -a_.alibi_slopes[u_.alibi_offset + head];
      for (int row = 0; row < u_.seqlen_q; row += kTileQ) tile(b, head, row);
    }
    put_key_sums<Compute>(b, keys_);
    for (int key = 0; key < keys_; key += kTileK) {
      if (!(b.dk_begun >> key / kTileK & 1)) clear_keys(b, key);
    }
    store_keys();
  }

 private:
  const BwdStorage& storage_;
  const BwdProblem& a_;
  const BwdUnit& u_;
  BwdScratch& w_;
  const int keys_, head_k_;
  const fmha::Window window_;
  const BwdStrides t_;
  Ahead ahead_;
  bool asked_next_keys_ = false, asked_dk_ = false;

  const char* bytes(const void* base, i64 elements) const { return (const char*)base + elements * storage_.bytes; }
  char* bytes(void* base, i64 elements) const { return (char*)base + elements * storage_.bytes; }

  // Keys past the last one are rows of 0, up to a whole group: they meet dS = 0.
  void load_keys() {
    const char* k = bytes(a_.k, u_.k_offset + head_k_ * a_.k_head + u_.key * a_.k_row);
    const char* v = bytes(a_.v, u_.v_offset + head_k_ * a_.v_head + u_.key * a_.v_row);
    const int rows = round_up(keys_, kGroup), missing = rows - keys_;
    storage_.load_rows(w_.v, v, a_.v_row, keys_, a_.hdim_v);
    __builtin_memset(w_.v + keys_ * t_.v, 0, sizeof(float) * missing * t_.v);
    if constexpr (Compute::kWord == 1) {
      storage_.load_vectors(w_.k, k, a_.k_row, keys_, a_.hdim_q);
    } else {
      for (int key = 0; key < keys_; key += kTileQ) {
        const int some = keys_ - key < kTileQ ? keys_ - key : kTileQ;
        const char* from = k + key * a_.k_row * storage_.bytes;
        i64 row = a_.k_row;
        side_by_side(from, row, some, a_.hdim_q);
        storage_.load_rows(w_.k + key * t_.k, from, row, some, a_.hdim_q);
        storage_.load_vectors(w_.k_keys + key / 2 * t_.q, from, row, some, a_.hdim_q);
      }
      const int words = (keys_ + 1) / 2;
      __builtin_memset(w_.k_keys + words * t_.q, 0, sizeof(float) * (rows / 2 - words) * t_.q);
    }
    __builtin_memset(w_.k + keys_ * t_.k, 0, sizeof(float) * missing * t_.k);
  }

  void store_keys() {
    if (u_.dk_acc) {
      store_rows<float>(u_.dk_acc + i64(u_.key) * a_.hdim_q, a_.hdim_q, w_.dk, t_.q, a_.softmax_scale, keys_,
                        a_.hdim_q);
      store_rows<float>(u_.dv_acc + i64(u_.key) * a_.hdim_v, a_.hdim_v, w_.dv, t_.dout, 1.f, keys_, a_.hdim_v);
      return;
    }
    char* dk = bytes(a_.dk, u_.dk_offset + head_k_ * a_.dk_head + u_.key * a_.dk_row);
    char* dv = bytes(a_.dv, u_.dv_offset + head_k_ * a_.dv_head + u_.key * a_.dv_row);
    storage_.store_rows(dk, a_.dk_row, w_.dk, t_.q, a_.softmax_scale, keys_, a_.hdim_q);
    storage_.store_rows(dv, a_.dv_row, w_.dv, t_.dout, 1.f, keys_, a_.hdim_v);
  }

  BwdBlock block() {
    const ScoreStage stage = bwd_stage_of(a_, storage_);
    BwdBlock b{w_,     t_, stage, {}, {}, a_.features.dropout, Cap::none, ahead_, false, 0, storage_.own_gradients,
               nullptr};
    if (a_.features.softcap) b.cap = a_.features.bias == Bias::alibi ? Cap::below_alibi : Cap::alone;
    b.score = {1.f, a_.softmax_scale, a_.softcap, 0.f, nullptr, a_.bias_row, 0, 0, 0};
    b.score.own = &a_, b.score.batch = u_.batch;
    b.gradients = {stage || b.own ? kLog2e : kLog2e * a_.softmax_scale, b.dropped ? 1 / (1 - a_.dropout_p) : 1.f,
                   a_.features.softcap ? 1 / a_.softcap : 0.f, a_.features.dbias};
    return b;
  }

  // Rows that are read twice, at most kTileQ: if they lie apart, they are copied into L1. Each is in a page of its own, and those
  // a power of two apart share few sets of the caches.
  void side_by_side(const char*& from, i64& row, int rows, int hdim) {
    if (row == hdim) return;
    const i64 width = i64(storage_.bytes) * hdim;
    for (int i = 0; i < rows; ++i) __builtin_memcpy(w_.rows + i * width, from + i * row * storage_.bytes, width);
    from = w_.rows, row = hdim;
  }

  // Loads both forms of the rows of a tile.
  void load_rows(float* vectors, float* transposed, const char* from, i64 row, int rows, int hdim) {
    side_by_side(from, row, rows, hdim);
    storage_.load_vectors(vectors, from, row, rows, hdim);
    storage_.load_transposed(transposed, from, row, rows, hdim);
  }

  // Q and dO in both forms, LSE and D of the rows of a tile.
  void load_queries(int head, int row, int rows) {
    const char* q = bytes(a_.q, u_.q_offset + head * a_.q_head + row * a_.q_row);
    const char* dout = bytes(a_.dout, u_.dout_offset + head * a_.dout_head + row * a_.dout_row);
    load_rows(w_.q, w_.q_t, q, a_.q_row, rows, a_.hdim_q);
    load_rows(w_.dout, w_.dout_t, dout, a_.dout_row, rows, a_.hdim_v);
    const i64 at = u_.lse_offset + head * a_.lse_head + row;
    for (int i = 0; i < kTileQ; ++i) {
      const bool seen = i < rows && !(a_.lse[at + i] < kLeastLse);
      w_.lse[i] = seen ? a_.lse[at + i] * kLog2e : kInfinity;
      w_.delta[i] = seen ? a_.delta[at + i] : 0.f;
    }
  }

  // While this tile is computed: the rows of the next one. During the last tiles: where dk and dv go, and the keys of the
  // unit that comes next.
  void fetch_ahead(int head, int row) {
    ahead_.next_tile();
    row += kTileQ;
    const int left = (u_.head_end - 1 - head) * tiles() + (u_.seqlen_q - row + kTileQ - 1) / kTileQ;
    if (left > 0) fetch_tile(row < u_.seqlen_q ? head : head + 1, row < u_.seqlen_q ? row : 0);
    if (left <= 3 && u_.next && !asked_next_keys_) fetch_keys(*u_.next);
    if (left <= 1 && !u_.dk_acc && !asked_dk_) fetch_gradients();
  }

  int tiles() const { return (u_.seqlen_q + kTileQ - 1) / kTileQ; }

  void fetch_tile(int head, int row) {
    const int rows = u_.seqlen_q - row < kTileQ ? u_.seqlen_q - row : kTileQ;
    ahead_.add_to_tile(bytes(a_.q, u_.q_offset + head * a_.q_head + row * a_.q_row), a_.q_row * storage_.bytes, rows,
                       a_.hdim_q * storage_.bytes);
    ahead_.add_to_tile(bytes(a_.dout, u_.dout_offset + head * a_.dout_head + row * a_.dout_row),
                       a_.dout_row * storage_.bytes, rows, a_.hdim_v * storage_.bytes);
    ahead_.add_to_tile(u_.dq_acc + (head - u_.head) * u_.dq_acc_head + i64(row) * a_.hdim_q, a_.hdim_q * 4, rows,
                       a_.hdim_q * 4);
  }

  void fetch_keys(const BwdUnit& next) {
    asked_next_keys_ = true;
    const i64 head = next.head / (a_.nhead_q / a_.nhead_k);
    const int keys = next.key_end - next.key;
    ahead_.add_to_unit(bytes(a_.v, next.v_offset + head * a_.v_head + next.key * a_.v_row), a_.v_row * storage_.bytes,
                       keys, a_.hdim_v * storage_.bytes);
    ahead_.add_to_unit(bytes(a_.k, next.k_offset + head * a_.k_head + next.key * a_.k_row), a_.k_row * storage_.bytes,
                       keys, a_.hdim_q * storage_.bytes);
  }

  void fetch_gradients() {
    asked_dk_ = true;
    ahead_.add_to_unit(bytes(a_.dk, u_.dk_offset + head_k_ * a_.dk_head + u_.key * a_.dk_row),
                       a_.dk_row * storage_.bytes, keys_, a_.hdim_q * storage_.bytes);
    ahead_.add_to_unit(bytes(a_.dv, u_.dv_offset + head_k_ * a_.dv_head + u_.key * a_.dv_row),
                       a_.dv_row * storage_.bytes, keys_, a_.hdim_v * storage_.bytes);
  }

  void tile(BwdBlock& b, int head, int row) {
    const int rows = u_.seqlen_q - row < kTileQ ? u_.seqlen_q - row : kTileQ, vectors = (rows + kLanes - 1) / kLanes;
    const u64 rng_offset = a_.rng_offset + (u64(u_.batch) * a_.nhead_q + head) * 64;
    const uint8_t threshold = core::dropout_threshold(a_.dropout_p);
    const i64 shifted = row + window_.shift;
    bool loaded = false;
    for (int key = u_.key; key < u_.key + keys_; key += kTileK) {
      const int keys = u_.key + keys_ - key < kTileK ? u_.key + keys_ - key : kTileK;
      if (a_.features.store_randval) {
        unsigned char* randval = a_.randval + u_.randval_offset + head * a_.randval_head + row * a_.randval_row + key;
        store_randval(randval, a_.randval_row, a_.rng_seed, rng_offset, row, key, rows, keys);
      }
      char* dbias = nullptr;
      if (a_.features.dbias) dbias = bytes(a_.dbias, u_.dbias_offset + head * a_.dbias_head + row * a_.dbias_row + key);

      // Lane i sees the block's keys [i + first, i + last].
      const Edges edges{shifted - window_.left - key, shifted + window_.right - key, window_.sink - key, keys};
      if (!any_visible(edges, rows)) {
        if (dbias) storage_.store_dbias(dbias, a_.dbias_row, nullptr, rows, keys);
        continue;
      }
      b.score.rows = rows;
      b.score.keys = keys;
      b.score.head = head, b.score.row = row, b.score.key = key;
      if (storage_.own_mask) {
        const Sees sees = storage_.own_mask(b.score, w_.keep);
        if (sees == Sees::none) continue;
        b.seen = sees == Sees::some ? w_.keep : nullptr;
      }
      if (!loaded) {
        load_queries(head, row, rows);
        rows_loaded<Compute>(b, rows);
        fetch_ahead(head, row);
        b.dq_begun = false;
      }
      loaded = true;
      if (b.dropped) keep_block(w_.keep, a_.rng_seed, rng_offset, row, key, threshold);
      b.score.distance = shifted - key;
      b.score.bias = bytes(a_.bias, u_.bias_offset + head * a_.bias_head + row * a_.bias_row + key);
      const Visible visible = visible_of(edges, vectors);
      backward_block<Compute>(b, key - u_.key, rows, visible);
      if (dbias) {
        clear_unseen(w_.dp, visible);
        storage_.store_dbias(dbias, a_.dbias_row, w_.dp, rows, keys);
      }
    }
    if (!loaded) return;
    put_row_sums<Compute>(b, rows);
    const i64 at = (head - u_.head) * u_.dq_tiles_head + row / kTileQ;
    const TileLock lock(u_.dq_locks ? u_.dq_locks + at : nullptr);
    const Into into = u_.dq_begun && !u_.dq_begun[at] ? Into::overwrite : Into::add;
    if (u_.dq_begun) u_.dq_begun[at] = 1;
    put_dq(into, u_.dq_acc + (head - u_.head) * u_.dq_acc_head + i64(row) * a_.hdim_q, w_.dq, t_.q, rows, a_.hdim_q);
  }
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
