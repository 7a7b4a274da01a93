// SPDX-License-Identifier: MIT
// Sources of the forward's keys. A source of keys says which of them the unit may read, puts a block of them into the
// shape that the products want, and knows their descales. DenseKeys is fmha_fwd's: one array, rows a constant stride apart.
#pragma once

#include "kernels/attention/cpu/qlanes/packed.h"
#include "kernels/attention/fwd_engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using fmha::FwdProblem;
using fmha::FwdUnit;
using fmha::Qscale;

// The factor of a key block is q[row's block] k[key's block]. Blocks are runs of keys, or pages, whose numbers a table holds.
struct Descales {
  float q = 1.f, v = 1.f;  // of the whole tile
  const float *k = nullptr, *v_blocks = nullptr;
  int keys = 1;  // per block
  const int* table = nullptr;
  i64 stride = 1;  // from block to block

  TILEKILN_INLINE bool blocked() const { return k != nullptr; }
  TILEKILN_INLINE i64 at(i64 key) const { return (table ? i64(table[key / keys]) : key / keys) * stride; }
};

TILEKILN_INLINE Descales descales_of(const FwdProblem& a, const FwdUnit& u, int head_k) {
  Descales d;
  if (a.features.qscale == Qscale::pertensor) {
    d.q = a.q_descale[0] * a.k_descale[0];
    d.v = a.v_descale[0];
  } else if (a.features.qscale == Qscale::blockscale) {
    d.q = a.q_descale[u.q_descale_offset + u.head * a.q_descale_head + u.row / a.block_scale_q];
    d.k = a.k_descale + u.k_descale_offset + head_k * a.k_descale_head;
    d.v_blocks = a.v_descale + u.v_descale_offset + head_k * a.v_descale_head;
    d.keys = a.block_scale_k;
  }
  return d;
}

// Asks L2 for the rows of K of the first block while Q is transposed: S = 77 takes 0.95-0.99 of the time, long rows the same. V is
// asked for beside the first product.
TILEKILN_INLINE void prefetch_rows(const char* rows, i64 stride, int count, i64 bytes) {
  for (int i = 0; i < count; ++i) {
    for (i64 byte = 0; byte < bytes; byte += 64) __builtin_prefetch(rows + i * stride + byte, 0, 2);
  }
}

// Tiles of queries that read a block of one key head, about.
template <class Problem, class Unit> TILEKILN_INLINE i64 tiles_of_head(const Problem& a, const Unit& u) {
  i64 tiles = i64(u.seqlen_q + kTileQ - 1) / kTileQ;
  if (a.features.mask && a.window_left >= 0 && a.window_right >= 0) {
    const i64 seen = (i64(a.window_left) + a.window_right) / kTileK + 1;
    if (seen < tiles) tiles = seen;
  }
  return tiles * (a.nhead_q / a.nhead_k);
}

class DenseKeys {
 public:
  TILEKILN_INLINE DenseKeys(const Storage& storage, const FwdProblem& a, const FwdUnit& u, int head_k, Scratch& w,
                            int word)
      : a_(a),
        k_((const char*)a.k + storage.kv_bytes * (u.k_offset + head_k * a.k_head)),
        v_((const char*)a.v + storage.kv_bytes * (u.v_offset + head_k * a.v_head)),
        bytes_(storage.kv_bytes),
        blocks_(storage, a, w, k_, v_, nullptr, 0, a.k_row, a.v_row, word, tiles_of_head(a, u)) {}

  static i64 begin(const FwdUnit&) { return 0; }
  static i64 end(const FwdUnit& u) { return u.seqlen_k; }
  static bool has_sink(const FwdUnit&) { return true; }
  static Descales descales(const FwdProblem& a, const FwdUnit& u, int head_k) { return descales_of(a, u, head_k); }

  TILEKILN_INLINE void prefetch(i64 key, int keys) const {
    if (keys > 0 && blocks_.packed.has_both(key, keys)) return;  // the rows themselves are not read again
    prefetch_rows(k_ + bytes_ * key * a_.k_row, bytes_ * a_.k_row, keys, bytes_ * a_.hdim_q);
  }

  // end: of the keys that the tile sees.
  TILEKILN_INLINE void block(Block& b, i64 key, int keys, i64 end) {
    const char* const k = k_ + bytes_ * key * a_.k_row;
    blocks_.rows(b, k, a_.k_row, v_ + bytes_ * key * a_.v_row, a_.v_row, key, keys);
    blocks_.next(b, k + bytes_ * keys * a_.k_row, a_.k_row, key + keys, end);
  }

 private:
  const FwdProblem& a_;
  const char *k_, *v_;
  i64 bytes_;
  HeadBlocks blocks_;
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
